// porcupine-judge FILE... says whether the histories in these files are linearizable: whether for
// each key there is an order of its operations that one copy of it would allow. Porcupine looks for
// it; docs/testing.md describes the files.
//
// It ends with 0 if all are, with 1 if one is not, and with 2 if nothing can be said.
package main

import (
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long the search for one key's order may take.
const patience = 5 * time.Minute

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine-judge FILE...   (docs/testing.md has their form)")
		os.Exit(2)
	}
	status := 0
	for _, path := range os.Args[1:] {
		status = max(status, judgeFile(path, os.Stdout))
	}
	os.Exit(status)
}

func judgeFile(path string, out io.Writer) int {
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(out, err)
		return 2
	}
	defer file.Close()
	return judge(path, file, out)
}

// judge says what is to be said of a file, and returns the status to end with.
func judge(path string, from io.Reader, out io.Writer) int {
	all, err := histories(from)
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", path, err)
		return 2
	}
	// A test that has written nothing has shown nothing.
	if len(all) == 0 {
		fmt.Fprintf(out, "%s: it has no operations\n", path)
		return 2
	}
	names, operations, status := make([]string, 0, len(all)), 0, 0
	for name, history := range all {
		names = append(names, name)
		operations += len(history)
	}
	sort.Strings(names)
	for _, name := range names {
		status = max(status, judgeKey(name, all[name], out))
	}
	if status == 0 {
		fmt.Fprintf(out, "%s: %d keys, %d operations, linearizable\n", path, len(all), operations)
	}
	return status
}

func judgeKey(name string, history []porcupine.Operation, out io.Writer) int {
	status := 0
	switch porcupine.CheckOperationsTimeout(key, history, patience) {
	case porcupine.Ok:
		return 0
	case porcupine.Illegal:
		fmt.Fprintf(out, "%s is not linearizable:\n", name)
		status = 1
	case porcupine.Unknown:
		fmt.Fprintf(out, "%s: no order was found within %v, nor that there is none:\n", name, patience)
		status = 2
	}
	sort.Slice(history, func(a, b int) bool { return history[a].Call < history[b].Call })
	for _, operation := range history {
		fmt.Fprintf(out, "  %v\n", operation.Input)
	}
	return status
}
