-- +goose Up
-- The DHCP servers hold all reservations in memory, and are told when one has changed.
-- +goose StatementBegin
CREATE FUNCTION tell_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('bareyard_reservation', '');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tell_reservation AFTER INSERT OR DELETE OR UPDATE OF name, hardware, boot_addr ON machine
    FOR EACH STATEMENT EXECUTE FUNCTION tell_reservation();

-- +goose Down
DROP TRIGGER tell_reservation ON machine;
DROP FUNCTION tell_reservation;
