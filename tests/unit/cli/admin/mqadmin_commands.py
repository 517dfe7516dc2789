"""The commands and options of mqadmin 4.9.7, beside `-n/--namesrvAddr` and `-h/--help` of all.

In the notation of the tests: `-t/--topic V*` takes a value and is required.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """An option of a command."""

    short: str
    long: str
    takes_value: bool
    is_required: bool


class Command(NamedTuple):
    """A command of mqadmin."""

    area: str
    name: str
    text: str

    @property
    def options(self) -> list[Option]:
        """The options, parsed."""
        words = self.text.split()
        found = []
        for index, word in enumerate(words):
            if word.startswith("-"):
                short, _, long = word.partition("/")
                value = words[index + 1] if index + 1 < len(words) else ""
                found.append(Option(short, long, value.startswith("V"), value == "V*"))
        return found


_LINES = """\
acl clusterAclConfigVersion -b/--brokerAddr V -c/--clusterName V
acl deleteAclConfig -b/--brokerAddr V -c/--clusterName V -a/--accessKey V*
acl getAclConfig -b/--brokerAddr V -c/--clusterName V
acl updateAclConfig -b/--brokerAddr V -c/--clusterName V -a/--accessKey V* -s/--secretKey V* \
-w/--whiteRemoteAddress V -i/--defaultTopicPerm V -u/--defaultGroupPerm V -t/--topicPerms V \
-g/--groupPerms V -m/--admin V
acl updateGlobalWhiteAddr -b/--brokerAddr V -c/--clusterName V -g/--globalWhiteRemoteAddresses \
V* -p/--aclFileFullPath V
broker brokerConsumeStats -b/--brokerAddr V* -t/--timeoutMillis V -l/--level V -o/--order V
broker brokerStatus -b/--brokerAddr V -c/--clusterName V
broker cleanExpiredCQ -b/--brokerAddr V -c/--cluster V
broker cleanUnusedTopic -b/--brokerAddr V -c/--cluster V
broker deleteExpiredCommitLog -n/--namesrvAddr V -b/--brokerAddr V -c/--cluster V
broker getBrokerConfig -b/--brokerAddr V -c/--clusterName V
broker sendMsgStatus -b/--brokerName V* -s/--messageSize V -c/--count V
broker updateBrokerConfig -b/--brokerAddr V -c/--clusterName V -k/--key V* -v/--value V*
cluster clusterList -m/--moreStats -i/--interval V
cluster clusterRT -a/--amount V -s/--size V -c/--cluster V -i/--interval V
connection consumerConnection -g/--consumerGroup V* -b/--brokerAddr V
connection producerConnection -g/--producerGroup V* -t/--topic V*
consumer consumerProgress -g/--groupName V -s/--showClientIP V
consumer consumerStatus -g/--consumerGroup V* -i/--clientId V -b/--brokerAddr V -s/--jstack
consumer deleteSubGroup -b/--brokerAddr V -c/--clusterName V -g/--groupName V* -r/--removeOffset V
consumer getConsumerConfig -g/--groupName V*
consumer startMonitoring
consumer updateSubGroup -b/--brokerAddr V -c/--clusterName V -g/--groupName V* \
-s/--consumeEnable V -m/--consumeFromMinEnable V -d/--consumeBroadcastEnable V \
-q/--retryQueueNums V -r/--retryMaxTimes V -i/--brokerId V -w/--whichBrokerWhenConsumeSlowly V \
-a/--notifyConsumerIdsChanged V
export exportConfigs -c/--clusterName V* -f/--filePath V
export exportMetadata -c/--clusterName V -b/--brokerAddr V -f/--filePath V -t/--topic \
-g/--subscriptionGroup -s/--specialTopic
export exportMetrics -c/--clusterName V* -f/--filePath V
message checkMsgSendRT -t/--topic V* -a/--amount V -s/--size V
message consumeMessage -t/--topic V* -b/--brokerName V -i/--queueId V -o/--offset V \
-g/--consumerGroup V -c/--MessageNumber V
message printMsg -t/--topic V*
message printMsgByQueue -t/--topic V* -f/--calculate V
message queryMsgById -i/--msgId V* -g/--consumerGroup V -d/--clientId V -s/--sendMessage V \
-u/--unitName V
message queryMsgByKey -t/--topic V* -k/--msgKey V*
message queryMsgByOffset -t/--topic V* -b/--brokerName V* -i/--queueId V* -o/--offset V*
message queryMsgByUniqueKey -i/--msgId V* -g/--consumerGroup V -d/--clientId V -t/--topic V* \
-a/--showAll
message queryMsgTraceById -i/--msgId V* -t/--traceTopic V
message sendMessage -t/--topic V* -p/--body V* -k/--key V -c/--tags V -b/--broker V -i/--qid V \
-m/--msgTraceEnable V
namesrv addWritePerm -b/--brokerName V*
namesrv deleteKvConfig -s/--namespace V* -k/--key V*
namesrv getNamesrvConfig
namesrv updateKvConfig -s/--namespace V* -k/--key V* -v/--value V*
namesrv updateNamesrvConfig -k/--key V* -v/--value V*
namesrv wipeWritePerm -b/--brokerName V*
offset cloneGroupOffset -s/--srcGroup V* -d/--destGroup V* -t/--topic V* -o/--offline V
offset resetOffsetByTime -g/--group V* -t/--topic V* -s/--timestamp V* -f/--force V -c/--cplus
offset skipAccumulatedMessage -g/--group V* -t/--topic V* -f/--force V
producer producer -b/--broker V*
queue queryCq -t/--topic V* -q/--queue V* -i/--index V* -c/--count V -b/--broker V -g/--consumer V
stats statsAll -a/--activeTopic -t/--topic V
topic allocateMQ -t/--topic V* -i/--ipList V*
topic deleteTopic -t/--topic V* -c/--clusterName V*
topic topicClusterList -t/--topic V*
topic topicList -c/--clusterModel
topic topicRoute -t/--topic V* -l/--list
topic topicStatus -t/--topic V*
topic updateOrderConf -t/--topic V* -v/--orderConf V -m/--method V*
topic updateTopic -b/--brokerAddr V -c/--clusterName V -t/--topic V* -r/--readQueueNums V \
-w/--writeQueueNums V -p/--perm V -o/--order V -u/--unit V -s/--hasUnitSub V
topic updateTopicPerm -b/--brokerAddr V -c/--clusterName V -t/--topic V* -p/--perm V
"""

COMMANDS = tuple(
    Command(area, name, " ".join(options))
    for area, name, *options in (line.split() for line in _LINES.splitlines())
)
