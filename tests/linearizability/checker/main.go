// Command checker judges histories of checkpoints with Porcupine.
//
// Standard input has one history per line, as JSON. For each history, standard output has one line
// of JSON: the violated models, or an empty list. tests/linearizability/history.py describes the
// operations, and docs/INVARIANTS.md the models.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history takes at most this long; an undecided history is reported.
const patience = 60 * time.Second

type operation struct {
	Client int    `json:"client"`
	Kind   string `json:"kind"`
	Called int64  `json:"called"`
	// Absent if the operation never returned.
	Returned *int64 `json:"returned"`
	Number   int    `json:"number"`
	Value    string `json:"value"`
	Outcome  string `json:"outcome"`
	Numbers  []int  `json:"numbers"`
	// Of a savepoint.
	Name string `json:"name"`
}

type verdict struct {
	Violated []string `json:"violated"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<28)
	for lines.Scan() {
		var history []operation
		if err := json.Unmarshal(lines.Bytes(), &history); err != nil {
			fmt.Fprintln(os.Stderr, "cannot read a history:", err)
			os.Exit(1)
		}
		line, err := json.Marshal(verdict{judge(history)})
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot read the histories:", err)
		os.Exit(1)
	}
}

func judge(history []operation) []string {
	violated := []string{}
	for _, model := range []struct {
		name  string
		kinds []string
		model porcupine.NondeterministicModel
	}{
		{"register", []string{"commit", "read", "expire"}, register},
		{"list", []string{"commit", "list", "latest", "expire"}, list},
		{"savepoint", []string{"hold", "look up", "release"}, savepoint},
	} {
		var operations []porcupine.Operation
		for _, each := range history {
			if contains(model.kinds, each.Kind) {
				operations = append(operations, timed(each))
			}
		}
		judged := model.model
		switch porcupine.CheckOperationsTimeout(judged.ToModel(), operations, patience) {
		case porcupine.Illegal:
			violated = append(violated, model.name)
		case porcupine.Unknown:
			violated = append(violated, model.name+" (undecided)")
		}
	}
	return violated
}

func timed(each operation) porcupine.Operation {
	returned := int64(math.MaxInt64)
	if each.Returned != nil {
		returned = *each.Returned
	}
	return porcupine.Operation{
		ClientId: each.Client, Input: each, Call: each.Called, Output: each, Return: returned,
	}
}

// A register for each checkpoint id: a commit writes it once, an expiry clears it for ever, and a
// read returns its value, which is empty before the one and after the other.
var register = porcupine.NondeterministicModel{
	Partition: partition(func(step operation) string { return strconv.Itoa(step.Number) }),
	Init:      func() []interface{} { return []interface{}{""} },
	Step: func(state, input, _ interface{}) []interface{} {
		value, step := state.(string), input.(operation)
		switch step.Kind {
		case "read":
			return when(value == step.Value || value == gone && step.Value == "", value)
		case "expire":
			return expired(step, value, gone, value != "" && value != gone, value == gone)
		}
		return committed(step, value, step.Value, value == "")
	},
}

// All checkpoints: a list returns the ids that were committed and not expired before it, and a read
// of the newest checkpoint the greatest of them. An id is never used again. The newest checkpoint
// does not expire.
var list = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{""} },
	Step: func(state, input, _ interface{}) []interface{} {
		before, step := state.(string), input.(operation)
		visible, used := idsOf(before)
		switch step.Kind {
		case "list":
			return when(fmt.Sprint(visible) == fmt.Sprint(sorted(step.Numbers)), before)
		case "latest":
			return when(step.Number == newest(visible), before)
		case "expire":
			others := without(visible, step.Number)
			isVisible, isUsed := contains(visible, step.Number), contains(used, step.Number)
			possible := isVisible && step.Number < newest(visible)
			return expired(step, before, stateOf(others, used), possible, isUsed && !isVisible)
		}
		after := stateOf(append(visible, step.Number), append(used, step.Number))
		return committed(step, before, after, !contains(used, step.Number))
	},
}

// A register for each savepoint: it has the id of a checkpoint, or 0, from its creation until it is
// released.
var savepoint = porcupine.NondeterministicModel{
	Partition: partition(func(step operation) string { return step.Name }),
	Init:      func() []interface{} { return []interface{}{0} },
	Step: func(state, input, _ interface{}) []interface{} {
		number, step := state.(int), input.(operation)
		switch step.Kind {
		case "look up":
			return when(number == step.Number, number)
		case "release":
			return happened(step, number, 0, true)
		}
		return happened(step, number, step.Number, number == 0 || number == step.Number)
	},
}

// The value of a register after an expiry; no writer has such a token.
const gone = "-"

// committed returns the states after a commit, which is possible if nothing has the id.
func committed(step operation, before, after string, possible bool) []interface{} {
	if step.Outcome == "refused" {
		return []interface{}{before}
	}
	return happened(step, before, after, possible)
}

// expired returns the states after an expiry, which does nothing if another one was faster.
func expired(step operation, before, after string, possible, isGone bool) []interface{} {
	if isGone {
		return []interface{}{before}
	}
	return happened(step, before, after, possible)
}

// happened returns the states after a change, which may not have happened if its client died.
func happened[State comparable](step operation, before, after State, possible bool) []interface{} {
	switch step.Outcome {
	case "done":
		return when(possible, after)
	case "unknown":
		if possible && before != after {
			return []interface{}{before, after}
		}
		return []interface{}{before}
	}
	panic(step.Kind + " has the outcome " + step.Outcome)
}

func when[State any](possible bool, state State) []interface{} {
	if possible {
		return []interface{}{state}
	}
	return nil
}

// stateOf returns the visible ids and all used ids as text, in order, so that states are comparable.
func stateOf(visible, used []int) string {
	var state strings.Builder
	for _, number := range sorted(used) {
		fmt.Fprint(&state, number)
		if contains(visible, number) {
			state.WriteString("+")
		}
		state.WriteString(" ")
	}
	return state.String()
}

// newest returns the last id, or 0 if there is none.
func newest(visible []int) int {
	if len(visible) == 0 {
		return 0
	}
	return visible[len(visible)-1]
}

// idsOf returns the ids in a state, in order.
func idsOf(state string) (visible, used []int) {
	for _, text := range strings.Fields(state) {
		number, err := strconv.Atoi(strings.TrimSuffix(text, "+"))
		if err != nil {
			panic(err)
		}
		used = append(used, number)
		if strings.HasSuffix(text, "+") {
			visible = append(visible, number)
		}
	}
	return visible, used
}

// partition returns a function that splits a history by a key of its operations.
func partition(key func(operation) string) func([]porcupine.Operation) [][]porcupine.Operation {
	return func(history []porcupine.Operation) [][]porcupine.Operation {
		var parts [][]porcupine.Operation
		places := map[string]int{}
		for _, each := range history {
			name := key(each.Input.(operation))
			place, known := places[name]
			if !known {
				place = len(parts)
				places[name] = place
				parts = append(parts, nil)
			}
			parts[place] = append(parts[place], each)
		}
		return parts
	}
}

func contains[E comparable](elements []E, wanted E) bool {
	for _, each := range elements {
		if each == wanted {
			return true
		}
	}
	return false
}

func without(numbers []int, number int) []int {
	var others []int
	for _, each := range numbers {
		if each != number {
			others = append(others, each)
		}
	}
	return others
}

func sorted(numbers []int) []int {
	copied := append([]int(nil), numbers...)
	sort.Ints(copied)
	return copied
}
