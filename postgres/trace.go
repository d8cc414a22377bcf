package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine/trace"
)

// How much is kept of boots. A boot that goes well has 15 to 40 lines.
const (
	keptBoots     = 20  // of each port of a machine
	keptLines     = 300 // of each of them: the first few and the last
	keptFirst     = 40
	keptStrangers = 64 // ports that are no machine's
	strangerBoots = 3  // of each of them
	strangerBatch = 32 // of them in one batch; a flood of made-up addresses is cut here
)

// WriteTrace appends what machines asked, in the order of the lines, and forgets what is too old. A line without a MAC address
// is that of the machine to which its address is reserved; of nobody, it is dropped. Writers of several servers take turns.
func (db *DB) WriteTrace(ctx context.Context, lines []trace.Line) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('boot-trace'))`); err != nil {
			return err
		}
		w := tracing{tx: tx, boots: map[string]*openBoot{}, ours: map[string]bool{}}
		lines, err := w.sort(ctx, lines)
		if err != nil {
			return err
		}
		if err := w.open(ctx); err != nil {
			return err
		}
		for _, l := range lines {
			if err := w.add(ctx, l); err != nil {
				return err
			}
		}
		if err := w.flush(ctx); err != nil {
			return err
		}
		return w.prune(ctx)
	})
	if err != nil {
		return fmt.Errorf("write boot trace: %w", err)
	}
	return nil
}

// tracing is one batch.
type tracing struct {
	tx    pgx.Tx
	boots map[string]*openBoot // the newest of each port
	ours  map[string]bool      // ports of machines
	ended []*openBoot          // begun and over within the batch
	fresh bool                 // a stranger's boot began
}

// openBoot is the newest boot of a port.
type openBoot struct {
	number int64
	state  trace.Open
	last   *trace.Line
	seq    int  // of last
	dirty  bool // last has changed since it was written
	lines  []trace.Line
	first  int // seq of lines[0]
}

// sort finds out whose the lines are, and drops those of nobody and of too many strangers.
func (w *tracing) sort(ctx context.Context, lines []trace.Line) ([]trace.Line, error) {
	var froms []netip.Addr
	macs := map[string]bool{}
	for _, l := range lines {
		if l.MAC != "" {
			macs[l.MAC] = true
		} else if l.From.IsValid() {
			froms = append(froms, l.From)
		}
	}
	byAddr := map[netip.Addr]string{}
	if len(froms) > 0 {
		rows, err := w.tx.Query(ctx, `SELECT m.boot_addr, n->>'mac' FROM machine m, jsonb_array_elements(m.hardware->'nics') n
				WHERE m.boot_addr = ANY ($1) AND n->>'role' = 'provision'
			UNION ALL SELECT addr, mac::text FROM visit WHERE addr = ANY ($1)`, froms)
		if err != nil {
			return nil, err
		}
		var addr netip.Addr
		var mac string
		if _, err := pgx.ForEachRow(rows, []any{&addr, &mac}, func() error { byAddr[addr], macs[mac] = mac, true; return nil }); err != nil {
			return nil, err
		}
	}
	rows, err := w.tx.Query(ctx, `SELECT mac::text FROM machine_mac WHERE mac = ANY ($1::macaddr[])`, keys(macs))
	if err != nil {
		return nil, err
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, mac := range known {
		w.ours[mac] = true
	}
	strangers := map[string]bool{}
	kept := lines[:0:0]
	for _, l := range lines {
		l.MAC = cmp.Or(l.MAC, byAddr[l.From])
		if l.MAC == "" {
			continue
		}
		if !w.ours[l.MAC] {
			if !strangers[l.MAC] && len(strangers) >= strangerBatch {
				continue
			}
			strangers[l.MAC] = true
		}
		w.boots[l.MAC] = nil
		kept = append(kept, l)
	}
	return kept, nil
}

// open reads the newest boot of each port.
func (w *tracing) open(ctx context.Context) error {
	rows, err := w.tx.Query(ctx, `SELECT DISTINCT ON (b.mac) b.mac::text, b.number, b.ended, b.reach, l.seq, l.line FROM boot b
		LEFT JOIN LATERAL (SELECT seq, line FROM boot_line WHERE boot = b.number ORDER BY seq DESC LIMIT 1) l ON true
		WHERE b.mac = ANY ($1::macaddr[]) ORDER BY b.mac, b.number DESC`, keys(w.boots))
	if err != nil {
		return err
	}
	var mac string
	var number int64
	var ended time.Time
	var reach trace.Reach
	var seq *int
	var line *trace.Line
	_, err = pgx.ForEachRow(rows, []any{&mac, &number, &ended, &reach, &seq, &line}, func() error {
		b := &openBoot{number: number, state: trace.Open{Last: ended, Reach: reach}}
		if seq != nil && line != nil {
			last := *line
			b.seq, b.last = *seq, &last
		}
		w.boots[mac] = b
		line = nil
		return nil
	})
	return err
}

// add puts a line into its boot.
func (w *tracing) add(ctx context.Context, l trace.Line) error {
	b := w.boots[l.MAC]
	if b == nil || b.state.Begins(l) {
		if b != nil {
			w.ended = append(w.ended, b)
		}
		b = &openBoot{}
		if err := w.tx.QueryRow(ctx, `INSERT INTO boot (mac, began, ended, reach) VALUES ($1::macaddr, $2, $2, 0) RETURNING number`, l.MAC, l.At).Scan(&b.number); err != nil {
			return err
		}
		w.boots[l.MAC] = b
		w.fresh = w.fresh || !w.ours[l.MAC]
	}
	b.state.Add(l)
	if n := len(b.lines); n > 0 && l.Repeats(b.lines[n-1]) {
		b.lines[n-1] = l.Merge(b.lines[n-1])
		return nil
	} else if n == 0 && b.last != nil && l.Repeats(*b.last) {
		*b.last, b.dirty = l.Merge(*b.last), true
		return nil
	}
	if len(b.lines) == 0 {
		b.first = b.seq + 1
	}
	b.lines = append(b.lines, l)
	return nil
}

// flush writes what add has gathered.
func (w *tracing) flush(ctx context.Context) error {
	var batch pgx.Batch
	put := func(boot int64, seq int, l trace.Line) error {
		raw, err := json.Marshal(l)
		if err != nil {
			return err
		}
		batch.Queue(`INSERT INTO boot_line (boot, seq, line) VALUES ($1, $2, $3) ON CONFLICT (boot, seq) DO UPDATE SET line = $3`, boot, seq, string(raw))
		return nil
	}
	for _, b := range append(w.ended, values(w.boots)...) {
		if b.dirty {
			if err := put(b.number, b.seq, *b.last); err != nil {
				return err
			}
		}
		for i, l := range b.lines {
			if err := put(b.number, b.first+i, l); err != nil {
				return err
			}
		}
		batch.Queue(`UPDATE boot SET ended = greatest(ended, $2), reach = $3 WHERE number = $1`, b.number, b.state.Last, b.state.Reach)
		if last := b.first + len(b.lines) - 1; last > keptLines {
			batch.Queue(`WITH cut AS (DELETE FROM boot_line WHERE boot = $1 AND seq > $2 AND seq <= $3 RETURNING 1)
				UPDATE boot SET cut = cut + (SELECT count(*) FROM cut) WHERE number = $1`, b.number, keptFirst, last-(keptLines-keptFirst))
		}
	}
	return w.tx.SendBatch(ctx, &batch).Close()
}

// prune forgets old boots of the ports in the batch, and strangers that were not seen for longest.
func (w *tracing) prune(ctx context.Context) error {
	var batch pgx.Batch
	for mac := range w.boots {
		most := strangerBoots
		if w.ours[mac] {
			most = keptBoots
		}
		batch.Queue(`DELETE FROM boot WHERE mac = $1::macaddr AND number <= (SELECT number FROM boot WHERE mac = $1::macaddr ORDER BY number DESC OFFSET $2 LIMIT 1)`, mac, most)
	}
	if w.fresh {
		batch.Queue(`DELETE FROM boot WHERE mac IN (SELECT mac FROM boot b WHERE NOT EXISTS (SELECT 1 FROM machine_mac m WHERE m.mac = b.mac)
			AND NOT EXISTS (SELECT 1 FROM sighted_mac s WHERE s.mac = b.mac) GROUP BY mac ORDER BY max(number) DESC OFFSET $1)`, keptStrangers)
	}
	return w.tx.SendBatch(ctx, &batch).Close()
}

func keys[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

func values(m map[string]*openBoot) []*openBoot {
	var list []*openBoot
	for _, k := range keys(m) {
		if m[k] != nil {
			list = append(list, m[k])
		}
	}
	return list
}

const selectBoots = `SELECT b.number, b.mac::text, b.began, b.ended, b.cut,
	COALESCE((SELECT jsonb_agg(l.line ORDER BY l.seq) FROM boot_line l WHERE l.boot = b.number), '[]') FROM boot b `

func scanBoot(row pgx.CollectableRow) (trace.Boot, error) {
	var b trace.Boot
	err := row.Scan(&b.Number, &b.MAC, &b.Began, &b.Ended, &b.Cut, &b.Lines)
	return b, err
}

// Boots lists the boots by any of these ports, the newest first, with their lines.
func (db *DB) Boots(ctx context.Context, macs []string) ([]trace.Boot, error) {
	rows, err := db.pool.Query(ctx, selectBoots+`WHERE b.mac = ANY ($1::macaddr[]) ORDER BY b.number DESC LIMIT 100`, macs)
	if err != nil {
		return nil, fmt.Errorf("list boots: %w", err)
	}
	return pgx.CollectRows(rows, scanBoot)
}

// StrangerBoots returns the newest boot of each port that is no machine's, the newest first.
func (db *DB) StrangerBoots(ctx context.Context) ([]trace.Boot, error) {
	rows, err := db.pool.Query(ctx, selectBoots+`WHERE b.number IN (SELECT max(number) FROM boot x WHERE NOT EXISTS (SELECT 1 FROM machine_mac m WHERE m.mac = x.mac)
		AND NOT EXISTS (SELECT 1 FROM sighted_mac s WHERE s.mac = x.mac) GROUP BY x.mac) ORDER BY b.number DESC`)
	if err != nil {
		return nil, fmt.Errorf("list boots of unknown machines: %w", err)
	}
	return pgx.CollectRows(rows, scanBoot)
}

// Ports returns the MAC addresses of a machine, enrolled or only discovered, that is named by id, name, or the MAC address of
// any of its ports. A MAC address that is no machine's is returned as it is.
func (db *DB) Ports(ctx context.Context, name string) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT mac::text FROM machine_mac WHERE machine_id IN (SELECT id FROM machine WHERE $1 IN (id, name))
		UNION SELECT mac::text FROM sighted_mac WHERE discovery_id = $1`, name)
	if err != nil {
		return nil, fmt.Errorf("find ports: %w", err)
	}
	macs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find ports: %w", err)
	}
	if len(macs) > 0 {
		return macs, nil
	}
	mac, ok := parseMAC(name)
	if !ok {
		return nil, notFound("machine", name)
	}
	rows, err = db.pool.Query(ctx, `SELECT mac::text FROM machine_mac WHERE machine_id = (SELECT machine_id FROM machine_mac WHERE mac = $1::macaddr)
		UNION SELECT mac::text FROM sighted_mac WHERE discovery_id = (SELECT discovery_id FROM sighted_mac WHERE mac = $1::macaddr)
		UNION SELECT $1::macaddr::text`, mac)
	if err != nil {
		return nil, fmt.Errorf("find ports: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// parseMAC reads any of the usual spellings of an Ethernet address.
func parseMAC(s string) (string, bool) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return "", false
	}
	return mac.String(), true
}
