package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/anishathalye/porcupine"
)

// A line of a history: one operation of one client, as docs/testing.md describes it.
type line struct {
	Key    string `json:"key"`
	Client int    `json:"client"`
	Op     string `json:"op"`
	// What a set or a swap writes, an add adds, or how much an append makes it longer; 1 or 0 for a
	// getex that gives the key an end or takes it away; and what a swap wants to find.
	Value *int64 `json:"value"`
	Old   *int64 `json:"old"`
	// The order of beginnings and ends. No end: nobody saw the answer.
	Invoke *int64 `json:"invoke"`
	Return *int64 `json:"return"`
	// What a get found, nothing if the key was not there; the sum after an add; 1 or 0 if expires
	// found a key with an end or without one.
	Found *int64 `json:"found"`
	// Whether a delete, a swap, an expire or a persist did something.
	Did *bool `json:"did"`
}

// check says what is wrong with a line, if anything.
func (l *line) check() error {
	isOpen := l.Return == nil
	switch {
	case l.Invoke == nil:
		return errors.New("it has no \"invoke\"")
	case !isOpen && *l.Return < *l.Invoke:
		return errors.New("it ends before it begins")
	case (l.Op == "set" || l.Op == "swap" || l.Op == "add" || l.Op == "append" || l.Op == "getex") &&
		l.Value == nil:
		return errors.New("it has no \"value\"")
	case l.Op == "swap" && l.Old == nil:
		return errors.New("it has no \"old\"")
	case (l.Op == "delete" || l.Op == "swap" || l.Op == "expire" || l.Op == "persist") && !isOpen &&
		l.Did == nil:
		return errors.New("it has ended and does not say whether it \"did\" something")
	case l.Op == "add" && !isOpen && l.Found == nil:
		return errors.New("it has ended and does not say which sum it \"found\"")
	}
	switch l.Op {
	case "get", "set", "delete", "swap", "add", "append", "flush", "expire", "persist", "getex", "expires":
		return nil
	}
	return fmt.Errorf("%q is no operation: get, set, delete, swap, add, append, flush, expire, "+
		"persist, getex and expires are", l.Op)
}

// operation is the line as porcupine takes it. What nobody saw the end of ends after all others:
// it may take effect at any time, or be the last, when nobody looks.
func (l *line) operation() porcupine.Operation {
	end := int64(math.MaxInt64)
	if l.Return != nil {
		end = *l.Return
	}
	return porcupine.Operation{ClientId: l.Client, Input: l, Output: l, Call: *l.Invoke, Return: end}
}

// histories reads lines, and returns each key's operations.
func histories(from io.Reader) (map[string][]porcupine.Operation, error) {
	all := make(map[string][]porcupine.Operation)
	decoder := json.NewDecoder(from)
	decoder.DisallowUnknownFields()
	for number := 1; ; number++ {
		l := new(line)
		err := decoder.Decode(l)
		if err == io.EOF {
			return all, nil
		}
		if err == nil {
			err = l.check()
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", number, err)
		}
		all[l.Key] = append(all[l.Key], l.operation())
	}
}

// The state of a key: its value, if it is there, and whether it has an end, which nobody waits for.
type state struct {
	isThere bool
	value   int64
	ends    bool
}

func (s state) is(value *int64) bool {
	if value == nil {
		return !s.isThere
	}
	return s.isThere && s.value == *value
}

// step says whether one copy of the key could have answered so, and what the key is afterwards.
func (l *line) step(s state) (bool, state) {
	isOpen := l.Return == nil
	switch l.Op {
	case "get":
		return isOpen || s.is(l.Found), s
	case "set":
		return true, state{true, *l.Value, false}
	case "delete":
		return isOpen || *l.Did == s.isThere, state{}
	case "add":
		// What is not there is 0, in a state too.
		after := state{true, s.value + *l.Value, s.ends}
		return isOpen || after.is(l.Found), after
	case "append":
		return true, state{true, s.value + *l.Value, s.ends}
	case "flush":
		return true, state{}
	case "expire":
		return isOpen || *l.Did == s.isThere, state{s.isThere, s.value, s.isThere}
	case "persist":
		return isOpen || *l.Did == s.ends, state{s.isThere, s.value, false}
	case "getex":
		return isOpen || s.is(l.Found), state{s.isThere, s.value, s.isThere && *l.Value != 0}
	case "expires":
		end := state{isThere: s.isThere}
		if s.ends {
			end.value = 1
		}
		return isOpen || end.is(l.Found), s
	default:
		after, does := s, s.is(l.Old)
		if does {
			after = state{true, *l.Value, false}
		}
		return isOpen || *l.Did == does, after
	}
}

var key = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		return input.(*line).step(before.(state))
	},
}

func (l *line) String() string {
	bytes, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	return string(bytes)
}
