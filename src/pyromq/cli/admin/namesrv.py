"""The NameServer commands of `pyromq admin`. Changes go to every NameServer."""

from __future__ import annotations

from pyromq.cli.admin.options import text_option
from pyromq.cli.admin.running import Run, admin_command

_broker_option = text_option(
    "-b", "--brokerName", "broker_name", "Name the broker.", metavar="NAME", required=True
)
_namespace_option = text_option(
    "-s", "--namespace", "namespace", "Use this namespace.", metavar="NAME", required=True
)
_key_option = text_option("-k", "--key", "key", "Name the key.", metavar="KEY", required=True)
_value_option = text_option(
    "-v", "--value", "value", "Set this value.", metavar="VALUE", required=True
)


@admin_command("getNamesrvConfig", examples=("-n '10.0.0.1:9876;10.0.0.2:9876'",))
async def get_namesrv_config(run: Run) -> None:
    """Show the settings of the NameServers."""
    found = await run.admin.configuration.name_servers()
    run.result(found)
    for each in found:
        run.line(f"============{each.address}============")
        run.pairs(each.settings)


@admin_command("updateNamesrvConfig", examples=("-k maxTopics -v 100000",))
@_key_option
@_value_option
async def update_namesrv_config(run: Run, key: str, value: str) -> None:
    """Change a setting of the NameServers and save it in their files."""
    addresses = await run.admin.configuration.update_name_servers(key, value)
    run.result({"key": key, "value": value, "name_servers": addresses})
    run.line(f"update name server config success![{', '.join(addresses)}]")
    run.line(f"{key} : {value}")


@admin_command("updateKvConfig", examples=("-s myapp -k colour -v blue",))
@_namespace_option
@_key_option
@_value_option
async def update_kv_config(run: Run, namespace: str, key: str, value: str) -> None:
    """Set a key of the NameServers' key-value store."""
    addresses = await run.admin.configuration.put_value(namespace, key, value)
    run.result({"namespace": namespace, "key": key, "value": value, "name_servers": addresses})
    run.line("create or update kv config to namespace success.")


@admin_command("deleteKvConfig", destructive=True, examples=("-s myapp -k colour",))
@_namespace_option
@_key_option
async def delete_kv_config(run: Run, namespace: str, key: str) -> None:
    """Delete a key of the NameServers' key-value store."""
    if not run.confirmed(f"Delete key {key} of namespace {namespace}"):
        return
    addresses = await run.admin.configuration.delete_value(namespace, key)
    run.result({"namespace": namespace, "key": key, "name_servers": addresses})
    run.line("delete kv config from namespace success.")


@admin_command("getKvConfig", examples=("-s ORDER_TOPIC_CONFIG",))
@_namespace_option
@text_option("-k", "--key", "key", "Show this key instead of all.", metavar="KEY")
async def get_kv_config(run: Run, namespace: str, key: str | None) -> None:
    """Show keys of the NameServers' key-value store. mqadmin has no such command."""
    if key is None:
        values = await run.admin.configuration.values(namespace)
    else:
        values = {key: await run.admin.configuration.get_value(namespace, key)}
    run.result(values)
    run.pairs(values)


@admin_command("wipeWritePerm", destructive=True, examples=("-b broker-a",))
@_broker_option
async def wipe_write_perm(run: Run, broker_name: str) -> None:
    """Take write permission from a broker, so that producers stop using it.

    The broker itself is not changed: it gets the permission back when it registers its topics
    again after a change, or by addWritePerm.
    """
    if not run.confirmed(f"Take write permission from broker {broker_name}"):
        return
    changes = await run.admin.configuration.wipe_write_permission(broker_name)
    run.result(changes)
    for each in changes:
        run.line(
            f"wipe write perm of broker[{broker_name}] in name server[{each.name_server}] OK, "
            f"{each.topics}"
        )


@admin_command("addWritePerm", examples=("-b broker-a",))
@_broker_option
async def add_write_perm(run: Run, broker_name: str) -> None:
    """Give write permission back to a broker after wipeWritePerm."""
    changes = await run.admin.configuration.add_write_permission(broker_name)
    run.result(changes)
    for each in changes:
        run.line(
            f"add write perm of broker[{broker_name}] in name server[{each.name_server}] OK, "
            f"{each.topics}"
        )
