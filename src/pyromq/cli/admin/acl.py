"""The access control commands of `pyromq admin`.

The account that a command changes has mqadmin's options -a/--accessKey and -s/--secretKey. The
account that signs the request has --access-key and --secret-key.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyromq.admin.access import Account
from pyromq.cli.admin.options import flag_value_option, target_options, text_option
from pyromq.cli.admin.output import cell, second_text
from pyromq.cli.admin.running import Run, admin_command

_account_option = text_option(
    "-a", "--accessKey", "account", "Name the account.", metavar="KEY", required=True
)


@admin_command("getAclConfig", examples=("-b 10.0.0.1:10911",))
@target_options()
async def get_acl_config(run: Run, broker: str | None, cluster: str | None) -> None:
    """Show the accounts of a broker, or of all masters of a cluster.

    A broker of RocketMQ 4.9 returns secrets, and so does one of pyromq in compatible mode.
    """
    found = await run.admin.access.configurations(broker=broker, cluster=cluster)
    run.result(found)
    for each in found:
        run.line()
        run.line(f"globalWhiteRemoteAddresses: [{', '.join(each.global_white_addresses)}]")
        run.line()
        run.line("accounts:")
        for account in each.accounts:
            _show_account(run, account)
            run.line()


def _show_account(run: Run, account: Account) -> None:
    for name, value in (
        ("accessKey", account.access_key),
        ("secretKey", account.secret_key),
        ("whiteRemoteAddress", account.white_remote_address),
        ("admin", account.admin),
        ("defaultTopicPerm", account.default_topic_permission),
        ("defaultGroupPerm", account.default_group_permission),
        ("topicPerms", _list(account.topic_permissions)),
        ("groupPerms", _list(account.group_permissions)),
    ):
        run.line(f"  {name:<18}: {cell(value)}".rstrip())


def _list(values: Sequence[str] | None) -> str | None:
    return None if values is None else f"[{', '.join(values)}]"


@admin_command("clusterAclConfigVersion", examples=("-c DefaultCluster",))
@target_options()
async def cluster_acl_config_version(run: Run, broker: str | None, cluster: str | None) -> None:
    """Show the versions of the files of access control."""
    versions = await run.admin.access.versions(broker=broker, cluster=cluster)
    run.result(versions)
    run.table(
        (
            "#Cluster Name",
            "#Broker Name",
            "#Broker Addr",
            "#AclFilePath",
            "#AclConfigVersionNum",
            "#AclLastUpdateTime",
        ),
        [
            (
                each.cluster,
                each.broker_name,
                each.broker,
                each.path,
                each.counter,
                second_text(each.changed),
            )
            for each in versions
        ],
        numbers=("#AclConfigVersionNum",),
        header=broker is None,
    )
    whose = "broker" if broker is not None else "cluster"
    run.line(f"get {whose}'s plain access config version success.")


@admin_command(
    "updateAclConfig",
    examples=("-c DefaultCluster -a shop-app -s shop-secret -t 'orders=PUB|SUB'",),
)
@target_options()
@_account_option
@text_option(
    "-s",
    "--secretKey",
    "secret",
    "Set the secret of the account.",
    metavar="SECRET",
    required=True,
)
@text_option("-w", "--whiteRemoteAddress", "white", "Accept the account from these addresses.")
@text_option("-i", "--defaultTopicPerm", "topic_default", "Set the default for topics.")
@text_option("-u", "--defaultGroupPerm", "group_default", "Set the default for groups.")
@text_option("-t", "--topicPerms", "topics", "Set permissions: topicA=DENY,topicB=PUB|SUB.")
@text_option("-g", "--groupPerms", "groups", "Set permissions: groupA=DENY,groupB=SUB.")
@flag_value_option(
    "-m", "--admin", "is_admin", "Make the account an administrator.", default="false"
)
async def update_acl_config(
    run: Run,
    broker: str | None,
    cluster: str | None,
    account: str,
    secret: str,
    white: str | None,
    topic_default: str | None,
    group_default: str | None,
    topics: str | None,
    groups: str | None,
    is_admin: bool,
) -> None:
    """Create an account or change it, at a broker or at all brokers of a cluster.

    Permissions are DENY, PUB, SUB and PUB|SUB. As in mqadmin, an account is not an administrator
    after a change without -m true; other options that are not given stay as they are.
    """
    changed = Account(
        account,
        secret,
        white,
        is_admin,
        topic_default,
        group_default,
        None if topics is None else tuple(topics.split(",")),
        None if groups is None else tuple(groups.split(",")),
    )
    brokers = await run.admin.access.update(changed, broker=broker, cluster=cluster)
    run.result({"access_key": account, "brokers": brokers})
    for address in brokers:
        run.line(f"create or update plain access config to {address} success.")
    run.line(str(changed))


@admin_command("deleteAclConfig", destructive=True, examples=("-c DefaultCluster -a shop-app",))
@target_options()
@_account_option
async def delete_acl_config(
    run: Run, broker: str | None, cluster: str | None, account: str
) -> None:
    """Delete an account, at a broker or at all brokers of a cluster."""
    if not run.confirmed(f"Delete account {account} at {broker or f'cluster {cluster}'}"):
        return
    brokers = await run.admin.access.delete(account, broker=broker, cluster=cluster)
    run.result({"access_key": account, "brokers": brokers})
    for address in brokers:
        run.line(f"delete plain access config account from {address} success.")
    run.line(f"account's accesskey is:{account}")


@admin_command(
    "updateGlobalWhiteAddr", destructive=True, examples=("-b 10.0.0.1:10911 -g 10.0.1.*,10.0.2.7",)
)
@target_options()
@text_option(
    "-g",
    "--globalWhiteRemoteAddresses",
    "addresses",
    "Accept requests from these addresses without an account, separated by commas.",
    metavar="ADDRESSES",
    required=True,
)
@text_option(
    "-p",
    "--aclFileFullPath",
    "path",
    "Change this file of the broker instead of its default one.",
    metavar="FILE",
    default="",
)
async def update_global_white_addr(
    run: Run, broker: str | None, cluster: str | None, addresses: str, path: str
) -> None:
    """Replace the list of addresses that need no account."""
    if not run.confirmed(
        f"Replace the global white list at {broker or f'cluster {cluster}'} by {addresses}"
    ):
        return
    brokers = await run.admin.access.update_global_white_list(
        addresses, path, broker=broker, cluster=cluster
    )
    run.result({"addresses": addresses, "brokers": brokers})
    for address in brokers:
        run.line(f"update global white remote addresses to {address} success.")
