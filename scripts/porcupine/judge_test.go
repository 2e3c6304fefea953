package main

import (
	"strings"
	"testing"
)

const (
	set1     = `{"key":"k","client":0,"op":"set","value":1,"invoke":0,"return":1}` + "\n"
	openSet2 = `{"key":"k","client":0,"op":"set","value":2,"invoke":2}` + "\n"
	swap13   = `{"key":"k","client":2,"op":"swap","old":1,"value":3,"invoke":4,"return":9,"did":true}` +
		"\n"
	add2       = `{"key":"k","client":2,"op":"add","value":2,"invoke":4,"return":9,"found":3}` + "\n"
	append2    = `{"key":"k","client":2,"op":"append","value":2,"invoke":4,"return":9}` + "\n"
	flush      = `{"key":"k","client":2,"op":"flush","invoke":4,"return":9}` + "\n"
	expire     = `{"key":"k","client":2,"op":"expire","invoke":4,"return":9,"did":true}` + "\n"
	persist    = `{"key":"k","client":2,"op":"persist","invoke":10,"return":11,"did":true}` + "\n"
	getex1     = `{"key":"k","client":2,"op":"getex","value":1,"invoke":4,"return":9,"found":1}` + "\n"
	openDelete = `{"key":"k","client":3,"op":"delete","invoke":2}` + "\n"
)

func get(invoke, end, found string) string {
	if found != "" {
		found = `,"found":` + found
	}
	return `{"key":"k","client":1,"op":"get","invoke":` + invoke + `,"return":` + end + found + "}\n"
}

func expires(invoke, end, found string) string {
	return strings.ReplaceAll(get(invoke, end, found), `"get"`, `"expires"`)
}

// later is a line of what happens in 0 to 1, from 10 to 11.
func later(line string) string {
	return strings.ReplaceAll(line, `"invoke":0,"return":1`, `"invoke":10,"return":11`)
}

func TestVerdicts(t *testing.T) {
	for _, trial := range []struct {
		what, history string
		status        int
	}{
		{"a value that was set", set1 + get("2", "3", "1"), 0},
		{"an old value", set1 + get("2", "3", ""), 1},
		{"a value that nobody set", set1 + get("2", "3", "7"), 1},
		{"an open change, late", set1 + openSet2 + get("3", "4", "1") + get("5", "6", "2"), 0},
		{"an open change, never", set1 + openSet2 + get("3", "4", "1") + get("5", "6", "1"), 0},
		{"a value that goes back", set1 + openSet2 + get("3", "4", "2") + get("5", "6", "1"), 1},
		{"an open delete", set1 + openDelete + get("3", "4", ""), 0},
		{"a swap", set1 + swap13 + get("5", "6", "1") + get("7", "8", "3"), 0},
		{"a swap that goes back", set1 + swap13 + get("5", "6", "3") + get("7", "8", "1"), 1},
		{"a swap of nothing", swap13, 1},
		{"an add", set1 + add2 + get("5", "6", "1") + get("7", "8", "3"), 0},
		{"an add to nothing", strings.ReplaceAll(add2, `"found":3`, `"found":2`), 0},
		{"an add that is lost", set1 + add2 + add2, 1},
		{"an add that is carried out twice", set1 + add2 + get("10", "11", "5"), 1},
		{"an append", set1 + append2 + get("5", "6", "1") + get("7", "8", "3"), 0},
		{"an append that is lost", set1 + append2 + append2 + get("10", "11", "3"), 1},
		{"a flush", set1 + flush + get("5", "6", "1") + get("7", "8", ""), 0},
		{"a flush that leaves a key", set1 + flush + get("10", "11", "1"), 1},
		{"an end", set1 + expire + expires("10", "11", "1"), 0},
		{"an end that is lost", set1 + expire + expires("10", "11", "0"), 1},
		{"an end of nothing", expire, 1},
		{"an end that is taken away", set1 + expire + persist + expires("12", "13", "0"), 0},
		{"an end that is still there", set1 + expire + persist + expires("12", "13", "1"), 1},
		{"an end that was not there", set1 + persist, 1},
		{"an end beside a read", set1 + getex1 + expires("10", "11", "1"), 0},
		{"an end of a key without one", set1 + expires("2", "3", "1"), 1},
		{"an end of a key that is gone", set1 + openDelete + expires("3", "4", ""), 0},
		{"a new value with the old end", set1 + getex1 + later(set1) + expires("12", "13", "1"), 1},
		{"an add that leaves the end", set1 + getex1 + strings.ReplaceAll(add2, "4", "9") +
			expires("20", "21", "1"), 0},
		{"a persist without its answer", strings.ReplaceAll(persist, `,"did":true`, ""), 2},
		{"a getex that does not say what for", strings.ReplaceAll(getex1, `"value":1,`, ""), 2},
		{"an add without its sum", strings.ReplaceAll(add2, `,"found":3`, ""), 2},
		{"another key's value", set1 + strings.ReplaceAll(get("2", "3", "1"), `"k"`, `"j"`), 1},
		{"no operation", "", 2},
		{"no JSON", set1 + "what?", 2},
		{"an unknown operation", strings.ReplaceAll(set1, "set", "seat"), 2},
		{"an unknown field", strings.ReplaceAll(set1, "client", "guest"), 2},
		{"an end before the beginning", get("5", "4", ""), 2},
		{"a swap without its old value", strings.ReplaceAll(swap13, `"old":1,`, ""), 2},
		{"a delete without its answer", strings.ReplaceAll(openDelete, "2}", `2,"return":3}`), 2},
		{"a line without its beginning", strings.ReplaceAll(openDelete, `,"invoke":2`, ""), 2},
	} {
		var said strings.Builder
		if status := judge("trial", strings.NewReader(trial.history), &said); status != trial.status {
			t.Errorf("%s: status %d, not %d:\n%s", trial.what, status, trial.status, said.String())
		}
	}
}

// A wrong history is shown as it came.
func TestShown(t *testing.T) {
	var said strings.Builder
	judge("trial", strings.NewReader(set1+get("2", "3", "")), &said)
	for _, part := range []string{"k is not linearizable", `"op":"get"`, `"return":3`} {
		if !strings.Contains(said.String(), part) {
			t.Errorf("%q is not in:\n%s", part, said.String())
		}
	}
}
