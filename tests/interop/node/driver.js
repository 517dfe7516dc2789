'use strict';

// The Node client ali-ons, driven by the commands of tests/interop/client_driver.py; the protocol
// is described there.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const PATIENCE_MILLISECONDS = 40000;
const PAUSE_MILLISECONDS = 100;

const open = new Map();

// Standard output is for the protocol alone.
const logger = { info() {}, debug() {}, warn: console.error, error: console.error };

readline.createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0));

async function answer(text) {
  const call = JSON.parse(text);
  try {
    const result = await run(call);
    print({ call: call.call, result: result === undefined ? null : result });
  } catch (error) {
    print({ call: call.call, error: String(error.stack || error) });
  }
}

async function run(call) {
  switch (call.do) {
    case 'producer':
      return await startProducer(call);
    case 'send':
      return await send(open.get(call.name), call);
    case 'consumer':
      return await startConsumer(call);
    case 'close':
      await open.get(call.name).close();
      open.delete(call.name);
      return null;
    default:
      throw new Error(`unknown command ${call.do}`);
  }
}

function settings(call) {
  return {
    logger,
    nameSrv: call.namesrv,
    httpclient: {}, // demanded, but only used to look up NameServers at a URL
    instanceName: `${call.name}-${process.pid}`,
    namespace: call.namespace || '',
    pollNameServerInteval: 1000,
    heartbeatBrokerInterval: 1000,
    rebalanceInterval: 1000,
    persistConsumerOffsetInterval: 500,
    pullTimeDelayMillsWhenException: 200,
  };
}

async function startProducer(call) {
  const producer = new Producer({ ...settings(call), producerGroup: call.group });
  producer.on('error', error => console.error(error));
  await producer.ready();
  open.set(call.name, producer);
}

async function send(producer, call) {
  const results = [];
  for (const description of call.messages) {
    const result = await repeat(call.patient, () => producer.send(message(call.topic, description)));
    results.push({
      status: result.sendStatus,
      msgIds: [ result.msgId ],
      broker: result.messageQueue.brokerName,
      queueId: Number(result.messageQueue.queueId),
      queueOffset: Number(result.queueOffset),
      body: description.body,
    });
    await sleep(call.pace || 0);
  }
  return results;
}

async function repeat(patient, attempt) {
  const deadline = Date.now() + PATIENCE_MILLISECONDS;
  for (;;) {
    try {
      const result = await attempt();
      if (!patient || result.sendStatus === 'SEND_OK') {
        return result;
      }
    } catch (error) {
      if (!patient || Date.now() > deadline) {
        throw error;
      }
    }
    await sleep(PAUSE_MILLISECONDS);
  }
}

function message(topic, description) {
  const created = new Message(topic, description.tags || '', description.body);
  if (description.keys) {
    created.keys = description.keys.split(' ');
  }
  if (description.delay) {
    created.delayTimeLevel = description.delay;
  }
  Object.assign(created.properties, description.properties || {});
  if (created.properties.shard) {
    created.shardingKey = created.properties.shard;
  }
  return created;
}

async function startConsumer(call) {
  const options = { ...settings(call), consumerGroup: call.group, isBroadcast: !!call.broadcast };
  options.consumeFromWhere = 'CONSUME_FROM_FIRST_OFFSET';
  if (call.maxReconsumeTimes !== undefined) {
    options.maxReconsumeTimes = call.maxReconsumeTimes;
  }
  const consumer = new Consumer(options);
  consumer.on('error', error => console.error(error));
  consumer.subscribe(call.topic, call.expression || '*', async received => {
    report(call.name, received);
    const failures = received.properties.fail;
    if (failures !== undefined && received.reconsumeTimes < Number(failures)) {
      // Returning ACTION_RETRY would do for a first delivery, but not for one out of the retry topic.
      throw new Error(`failure ${received.reconsumeTimes + 1} of ${failures}, as the message wants`);
    }
  });
  await consumer.ready();
  open.set(call.name, consumer);
}

function report(name, received) {
  print({
    report: 'message',
    client: name,
    topic: received.topic,
    queueId: received.queueId,
    queueOffset: Number(received.queueOffset),
    msgId: received.msgId,
    body: received.body.toString(),
    tags: received.tags,
    keys: received.keys,
    reconsumeTimes: received.reconsumeTimes,
    bornTimestamp: Number(received.bornTimestamp),
    storeTimestamp: Number(received.storeTimestamp),
    properties: received.properties,
  });
}

function sleep(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

function print(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}
