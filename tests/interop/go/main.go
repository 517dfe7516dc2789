// The Go client, driven by the commands of tests/interop/client_driver.py; the protocol is
// described there.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// call is one command; fields that a command does not have are zero.
type call struct {
	Call              int       `json:"call"`
	Do                string    `json:"do"`
	Name              string    `json:"name"`
	Namesrv           string    `json:"namesrv"`
	Namespace         string    `json:"namespace"`
	Group             string    `json:"group"`
	Topic             string    `json:"topic"`
	Transactional     bool      `json:"transactional"`
	Mode              string    `json:"mode"`
	Messages          []content `json:"messages"`
	Pace              int       `json:"pace"`
	Patient           bool      `json:"patient"`
	Expression        string    `json:"expression"`
	SQL               bool      `json:"sql"`
	Orderly           bool      `json:"orderly"`
	Broadcast         bool      `json:"broadcast"`
	MaxReconsumeTimes *int32    `json:"maxReconsumeTimes"`
}

// content is what a test says of a message.
type content struct {
	Body       string            `json:"body"`
	Tags       string            `json:"tags"`
	Keys       string            `json:"keys"`
	Delay      int               `json:"delay"`
	Properties map[string]string `json:"properties"`
}

type client interface{ close() error }

type line map[string]any

var (
	open     sync.Map
	printing sync.Mutex
)

func main() {
	rlog.SetLogLevel("error")
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 16<<20)
	for input.Scan() {
		var command call
		if err := json.Unmarshal(input.Bytes(), &command); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			result, err := run(&command)
			if err != nil {
				print(line{"call": command.Call, "error": err.Error()})
				return
			}
			print(line{"call": command.Call, "result": result})
		}()
	}
}

func run(command *call) (any, error) {
	switch command.Do {
	case "producer":
		return nil, keep(command.Name, command, newProducer)
	case "send":
		sender, err := find[*sender](command.Name)
		if err != nil {
			return nil, err
		}
		return sender.send(command)
	case "consumer":
		return nil, keep(command.Name, command, newConsumer)
	case "close":
		found, err := find[client](command.Name)
		if err != nil {
			return nil, err
		}
		open.Delete(command.Name)
		return nil, found.close()
	}
	return nil, fmt.Errorf("unknown command %q", command.Do)
}

func keep[T client](name string, command *call, create func(*call) (T, error)) error {
	created, err := create(command)
	if err == nil {
		open.Store(name, created)
	}
	return err
}

func find[T client](name string) (T, error) {
	found, _ := open.Load(name)
	typed, ok := found.(T)
	if !ok {
		return typed, fmt.Errorf("no such client: %q", name)
	}
	return typed, nil
}

func print(values line) {
	text, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(text, '\n'))
}
