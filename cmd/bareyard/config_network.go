package main

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
)

// rdnsConfig is the name server that answers for our addresses; without a url each name is a task for an operator.
type rdnsConfig struct {
	URL     string `yaml:"url"`      // of PowerDNS's API
	KeyFile string `yaml:"key_file"` // holds its api-key
	Server  string `yaml:"server"`   // its server id
	TTL     uint16 `yaml:"ttl"`      // of the records, seconds
}

func (r *rdnsConfig) fill(folder string) {
	r.Server = cmp.Or(r.Server, "localhost")
	r.TTL = cmp.Or(r.TTL, 3600)
	if r.KeyFile != "" {
		r.KeyFile = absolute(folder, r.KeyFile)
	}
}

func (r *rdnsConfig) problem() (key, problem, hint string) {
	if r.URL == "" {
		if r.KeyFile != "" {
			return "rdns.url", "is missing", "give the address of PowerDNS's API, e.g. http://127.0.0.1:8081"
		}
		return "", "", ""
	}
	if !isWebURL(r.URL) {
		return "rdns.url", fmt.Sprintf("%q is no address of an API", r.URL), "write it as http://127.0.0.1:8081"
	}
	if r.KeyFile == "" {
		return "rdns.key_file", "is missing", "name the file that holds the api-key of pdns.conf"
	}
	return "", "", ""
}

// netboxConfig is a NetBox that is told what becomes of addresses; without a url none is.
type netboxConfig struct {
	URL       string `yaml:"url"`        // without /api
	TokenFile string `yaml:"token_file"` // holds an API token
	Tag       string `yaml:"tag"`        // slug of the tag that marks what is ours
}

func (n *netboxConfig) fill(folder string) {
	n.Tag = cmp.Or(n.Tag, "bareyard")
	if n.TokenFile != "" {
		n.TokenFile = absolute(folder, n.TokenFile)
	}
}

func (n *netboxConfig) problem() (key, problem, hint string) {
	switch {
	case n.URL == "" && n.TokenFile != "":
		return "netbox.url", "is missing", "give the address of NetBox, e.g. https://netbox.example.com"
	case n.URL == "":
		return "", "", ""
	case !isWebURL(n.URL) || strings.HasSuffix(strings.TrimSuffix(n.URL, "/"), "/api"):
		return "netbox.url", fmt.Sprintf("%q is no address of NetBox", n.URL), "write it as https://netbox.example.com, without /api"
	case n.TokenFile == "":
		return "netbox.token_file", "is missing", "name the file that holds an API token"
	}
	return "", "", ""
}

// isWebURL reports whether s is the base of an HTTP API, without a password in it.
func isWebURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// trafficConfig is for how long traffic is kept.
type trafficConfig struct {
	SampleDays uint16 `yaml:"sample_days"` // samples of five minutes
	HourDays   uint16 `yaml:"hour_days"`   // sums of an hour
}

func (t *trafficConfig) problem() (key, problem, hint string) {
	if t.SampleDays < 40 {
		return "traffic.sample_days", fmt.Sprintf("%d days do not hold a month and the time to dispute it", t.SampleDays), "give 40 or more"
	}
	if t.HourDays < t.SampleDays {
		return "traffic.hour_days", "is less than traffic.sample_days", "the sums of an hour are for when the samples are gone"
	}
	return "", "", ""
}
