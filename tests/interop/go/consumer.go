package main

import (
	"context"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// receiver is a push consumer that reports each delivery.
type receiver struct{ push rocketmq.PushConsumer }

func newConsumer(command *call) (*receiver, error) {
	options := []consumer.Option{
		consumer.WithNameServer([]string{command.Namesrv}),
		consumer.WithGroupName(command.Group),
		consumer.WithInstance(command.Name),
		consumer.WithNamespace(command.Namespace),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(command.Orderly),
		consumer.WithRebalanceLockInterval(time.Second),
		consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond),
	}
	if command.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if command.MaxReconsumeTimes != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*command.MaxReconsumeTimes))
	}
	push, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: command.Expression}
	if command.Expression == "" {
		selector.Expression = "*"
	}
	if command.SQL {
		selector.Type = consumer.SQL92
	}
	failed := consumer.ConsumeRetryLater
	if command.Orderly {
		failed = consumer.SuspendCurrentQueueAMoment
	}
	err = push.Subscribe(command.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			outcome := consumer.ConsumeSuccess
			for _, message := range messages {
				report(command.Name, message)
				failures, err := strconv.Atoi(message.GetProperty("fail"))
				if err == nil && int(message.ReconsumeTimes) < failures {
					outcome = failed
				}
			}
			return outcome, nil
		})
	if err != nil {
		return nil, err
	}
	return &receiver{push}, push.Start()
}

func (r *receiver) close() error { return r.push.Shutdown() }

func report(name string, message *primitive.MessageExt) {
	values := line{
		"report":         "message",
		"client":         name,
		"topic":          message.Topic,
		"queueOffset":    message.QueueOffset,
		"msgId":          message.MsgId,
		"body":           string(message.Body),
		"tags":           message.GetTags(),
		"keys":           message.GetKeys(),
		"reconsumeTimes": message.ReconsumeTimes,
		"bornTimestamp":  message.BornTimestamp,
		"storeTimestamp": message.StoreTimestamp,
		"properties":     message.GetProperties(),
	}
	if message.Queue != nil {
		values["broker"] = message.Queue.BrokerName
		values["queueId"] = message.Queue.QueueId
	}
	print(values)
}
