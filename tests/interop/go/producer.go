package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	patience = 40 * time.Second
	pause    = 100 * time.Millisecond
)

// sender is a producer of one of the two kinds that the library has.
type sender struct {
	plain         rocketmq.Producer
	transactional rocketmq.TransactionProducer
}

func newProducer(command *call) (*sender, error) {
	options := []producer.Option{
		producer.WithNameServer([]string{command.Namesrv}),
		producer.WithGroupName(command.Group),
		producer.WithInstanceName(command.Name),
		producer.WithNamespace(command.Namespace),
		producer.WithSendMsgTimeout(30 * time.Second),
		producer.WithQueueSelector(&shards{producer.NewRoundRobinQueueSelector()}),
	}
	if command.Transactional {
		created, err := rocketmq.NewTransactionProducer(&decisions{command.Name}, options...)
		if err != nil {
			return nil, err
		}
		return &sender{transactional: created}, created.Start()
	}
	created, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return &sender{plain: created}, created.Start()
}

func (s *sender) close() error {
	if s.transactional != nil {
		return s.transactional.Shutdown()
	}
	return s.plain.Shutdown()
}

func (s *sender) send(command *call) (any, error) {
	messages := make([]*primitive.Message, len(command.Messages))
	for i, description := range command.Messages {
		messages[i] = message(command.Topic, description)
	}
	results := []line{}
	add := func(message *primitive.Message, attempt func() (*primitive.SendResult, error)) error {
		result, err := repeat(command.Patient, attempt)
		if err == nil {
			results = append(results, told(message, result))
		}
		return err
	}
	ctx := context.Background()
	if command.Mode == "batch" {
		err := add(nil, func() (*primitive.SendResult, error) { return s.plain.SendSync(ctx, messages...) })
		return results, err
	}
	for _, message := range messages {
		var err error
		switch command.Mode {
		case "sync", "ordered":
			err = add(message, func() (*primitive.SendResult, error) { return s.plain.SendSync(ctx, message) })
		case "async":
			err = add(message, func() (*primitive.SendResult, error) { return s.sendAsync(ctx, message) })
		case "transaction":
			err = add(message, func() (*primitive.SendResult, error) {
				result, err := s.transactional.SendMessageInTransaction(ctx, message)
				if err != nil {
					return nil, err
				}
				return result.SendResult, nil
			})
		case "oneway":
			err = s.plain.SendOneWay(ctx, message)
		default:
			err = fmt.Errorf("unknown mode %q", command.Mode)
		}
		if err != nil {
			return nil, err
		}
		time.Sleep(time.Duration(command.Pace) * time.Millisecond)
	}
	return results, nil
}

func (s *sender) sendAsync(ctx context.Context, message *primitive.Message) (*primitive.SendResult, error) {
	type outcome struct {
		result *primitive.SendResult
		err    error
	}
	answers := make(chan outcome, 1)
	err := s.plain.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
		answers <- outcome{result, err}
	}, message)
	if err != nil {
		return nil, err
	}
	select {
	case answer := <-answers:
		return answer.result, answer.err
	case <-time.After(20 * time.Second):
		return nil, fmt.Errorf("no answer to an asynchronous send")
	}
}

// repeat tries until a patient producer was told that its message is stored.
func repeat(patient bool, attempt func() (*primitive.SendResult, error)) (*primitive.SendResult, error) {
	deadline := time.Now().Add(patience)
	for {
		result, err := attempt()
		if !patient || (err == nil && result.Status == primitive.SendOK) || time.Now().After(deadline) {
			return result, err
		}
		time.Sleep(pause)
	}
}

func message(topic string, description content) *primitive.Message {
	message := primitive.NewMessage(topic, []byte(description.Body))
	if description.Tags != "" {
		message.WithTag(description.Tags)
	}
	if description.Keys != "" {
		message.WithKeys(strings.Split(description.Keys, " "))
	}
	if description.Delay != 0 {
		message.WithDelayTimeLevel(description.Delay)
	}
	for key, value := range description.Properties {
		message.WithProperty(key, value)
	}
	return message
}

func told(message *primitive.Message, result *primitive.SendResult) line {
	values := line{
		"status":      "SEND_OK",
		"msgIds":      strings.Split(result.MsgID, ","),
		"broker":      result.MessageQueue.BrokerName,
		"queueId":     result.MessageQueue.QueueId,
		"queueOffset": result.QueueOffset,
	}
	if result.Status != primitive.SendOK {
		values["status"] = fmt.Sprint(result.Status)
	}
	if message != nil {
		values["body"] = string(message.Body)
	}
	return values
}

// shards sends a message with the property "shard" to the queue of that number.
type shards struct{ others producer.QueueSelector }

func (s *shards) Select(message *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	number, err := strconv.Atoi(message.GetProperty("shard"))
	if err != nil {
		return s.others.Select(message, queues, last)
	}
	return queues[number%len(queues)]
}

// decisions ends transactions as the messages themselves say.
type decisions struct{ name string }

func (d *decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return state(message.GetProperty("local"))
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	print(line{
		"report": "check", "client": d.name, "body": string(message.Body),
		"properties": message.GetProperties(),
	})
	return state(message.GetProperty("check"))
}

func state(decision string) primitive.LocalTransactionState {
	switch decision {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}
