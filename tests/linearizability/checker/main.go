// Command checker judges histories of checkpoints with Porcupine.
//
// Standard input has one history per line, as JSON. For each history, standard output has one line
// of JSON: the violated models, or an empty list. tests/linearizability/history.py describes the
// operations, and docs/INVARIANTS.md the two models.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
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
		kinds string
		model porcupine.NondeterministicModel
	}{
		{"register", "commit read", register},
		{"list", "commit list", list},
	} {
		var operations []porcupine.Operation
		for _, each := range history {
			if strings.Contains(model.kinds, each.Kind) {
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

// A register for each checkpoint id: a commit writes it once, and a read returns its value.
var register = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		var parts [][]porcupine.Operation
		places := map[int]int{}
		for _, each := range history {
			number := each.Input.(operation).Number
			place, known := places[number]
			if !known {
				place = len(parts)
				places[number] = place
				parts = append(parts, nil)
			}
			parts[place] = append(parts[place], each)
		}
		return parts
	},
	Init: func() []interface{} { return []interface{}{""} },
	Step: func(state, input, _ interface{}) []interface{} {
		value, step := state.(string), input.(operation)
		if step.Kind == "read" {
			return when(value == step.Value, value)
		}
		return committed(step, value, step.Value, value == "")
	},
}

// The sequence of all commits. A list returns the ids of all commits before it.
var list = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{" "} },
	Step: func(state, input, _ interface{}) []interface{} {
		ids, step := state.(string), input.(operation)
		if step.Kind == "list" {
			return when(len(strings.Fields(ids)) == len(step.Numbers) && hasAll(ids, step.Numbers), ids)
		}
		added := fmt.Sprintf("%s%d ", ids, step.Number)
		return committed(step, ids, added, !hasAll(ids, []int{step.Number}))
	},
}

// committed returns the states after a commit, which is possible if nothing has the id.
func committed(step operation, before, after string, possible bool) []interface{} {
	switch step.Outcome {
	case "done":
		return when(possible, after)
	case "refused":
		return []interface{}{before}
	case "unknown":
		if possible {
			return []interface{}{before, after}
		}
		return []interface{}{before}
	}
	panic("a commit has the outcome " + step.Outcome)
}

func hasAll(ids string, numbers []int) bool {
	for _, number := range numbers {
		if !strings.Contains(ids, fmt.Sprintf(" %d ", number)) {
			return false
		}
	}
	return true
}

func when(possible bool, state interface{}) []interface{} {
	if possible {
		return []interface{}{state}
	}
	return nil
}
