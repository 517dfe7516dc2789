"""Settings of RocketMQ 4.9.7 that have no effect here, each with the reason.

Files of running RocketMQ servers load as they are. A setting in one of these tables that differs
from RocketMQ's default is named in a warning at start-up, together with the others that share its
reason. `_refused` settings stop the start instead: ignoring them would leave open a server that
its operator believes closed, lose messages, or promise a feature that clients then miss.

`BROKER`, `STORE` and `NAMESERVER` complement the fields of `BrokerConfig`, `MessageStoreConfig`
and `NamesrvConfig`: together they name every field of RocketMQ's configuration classes. Defaults
are RocketMQ's; None means that the default depends on the machine.

Pure data, used at start-up by the configuration modules.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.base.settings import Unsupported

Table = Mapping[str, Unsupported]

_NO_POOLS = "requests run on one event loop; there are no thread pools to size"
_NO_NETTY = "it tunes Netty, which this server does not use"
_NO_SEMAPHORES = "requests that the server itself sends are not counted by a semaphore"
_OWN_CONNECTIONS = "buffers and idle time of connections to NameServers are fixed"
_DEAD = "RocketMQ 4.9.7 does not use it either"
_LOGGING = "logging is configured on the command line (--log-dir) and by logLevel"
_NO_PUT_LOCK = "one thread appends to the log; there is no put lock"
_LIGHT_QUEUES = "light message queues are not supported, so their consumers would get nothing"
_ASYNC_DELIVERY = "delayed messages are delivered by one task per level, in order"


def _ignored(reason: str, /, *, file_only: bool = False, **defaults: str | None) -> Table:
    return {
        key: Unsupported(key, default, reason, file_only=file_only)
        for key, default in defaults.items()
    }


def _refused(reason: str, /, *, file_only: bool = True, **defaults: str) -> Table:
    return {
        key: Unsupported(key, default, reason, refused=True, file_only=file_only)
        for key, default in defaults.items()
    }


_SERVER: Table = {
    **_ignored(
        _NO_POOLS,
        serverCallbackExecutorThreads="0",
        serverSelectorThreads="3",
        serverWorkerThreads="8",
    ),
    **_ignored(_NO_SEMAPHORES, serverAsyncSemaphoreValue="64", serverOnewaySemaphoreValue="256"),
    **_ignored(
        _NO_NETTY, serverPooledByteBufAllocatorEnable="true", useEpollNativeSelector="false"
    ),
}

BROKER: Table = {
    **_SERVER,
    **_ignored(
        _NO_POOLS,
        adminBrokerThreadPoolNums="16",
        clientCallbackExecutorThreads=None,
        clientManageThreadPoolNums="32",
        clientWorkerThreads="4",
        consumerManageThreadPoolNums="32",
        endTransactionThreadPoolNums=None,
        heartbeatThreadPoolNums=None,
        processReplyMessageThreadPoolNums=None,
        pullMessageThreadPoolNums=None,
        putMessageFutureThreadPoolNums=None,
        putThreadPoolQueueCapacity="10000",
        queryMessageThreadPoolNums=None,
        sendMessageThreadPoolNums=None,
    ),
    **_ignored(
        _NO_SEMAPHORES, clientAsyncSemaphoreValue="65535", clientOnewaySemaphoreValue="65535"
    ),
    **_ignored(_NO_NETTY, clientPooledByteBufAllocatorEnable="false"),
    **_ignored(
        _OWN_CONNECTIONS,
        clientChannelMaxIdleTimeSeconds="120",
        clientCloseSocketIfTimeout="true",
        clientSocketRcvBufSize="0",
        clientSocketSndBufSize="0",
    ),
    **_ignored(_LOGGING, isolateLogEnable="false"),
    **_ignored(
        "RocketMQ counts with it for hooks of its own only (COMMERCIAL_... statistics)",
        commercialBaseCount="1",
    ),
    **_ignored("statistics per queue are always kept", enableDetailStat="true"),
    **_ignored("pulled messages are always copied to memory first", transferMsgByHeap="true"),
    **_ignored(
        _DEAD,
        channelNotActiveInterval="60000",
        commercialBigCount="1",
        commercialEnable="true",
        commercialTimerCount="1",
        commercialTransCount="1",
        flushConsumerOffsetHistoryInterval="60000",
        highSpeedMode="false",
        maxDelayTime="40",
    ),
}

STORE: Table = {
    **_refused(_LIGHT_QUEUES, enableLmq="false", enableMultiDispatch="false"),
    **_ignored("there are no light message queues", maxLmqConsumeQueueNum="20000"),
    **_ignored(_NO_PUT_LOCK, useReentrantLockWhenPutMessage="true"),
    **_ignored(
        "recovery always dispatches every message of the log",
        duplicationEnable="false",
    ),
    **_ignored(
        "pages are locked in memory without writing to them (warmMapedFileEnable)",
        flushLeastPagesWhenWarmMapedFile="4096",
    ),
    **_ignored(
        _ASYNC_DELIVERY,
        enableScheduleAsyncDeliver="false",
        scheduleAsyncDeliverMaxPendingLimit="2000",
        scheduleAsyncDeliverMaxResendNum2Blocked="3",
    ),
    **_ignored("delayed messages are always counted", enableScheduleMessageStats="true"),
    **_ignored(_DEAD, putMsgIndexHightWater="600000"),
}

NAMESERVER: Table = _SERVER
