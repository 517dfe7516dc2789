"""The YAML files of access control: read them into `Rules`, and rewrite them for administrators.

    home/conf/plain_acl.yml     the default file
    home/conf/acl/**/*.yml      further files (also *.yaml), read first, in the order of their paths

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
    - accessKey: rocketmq2          # at least 7 characters, as the secret key
      secretKey: 12345678           # or ${NAME}, an environment variable
      whiteRemoteAddress: 192.168.1.*
      admin: false
      peer: false                   # ours: may register a broker and copy a master's tables
      defaultTopicPerm: DENY        # DENY, PUB, SUB or PUB|SUB
      defaultGroupPerm: SUB
      topicPerms: [topicA=DENY, topicB=PUB|SUB]
      groupPerms: [groupB=SUB]
    dataVersion: [{counter: 1, timestamp: 1700000000000}]    # written by this module

Rules
1. YAML 1.1, read by PyYAML's safe loader, which builds no objects. Numbers are taken as text. An
   error names the file and the line, and never a secret.
2. An access key that occurs twice counts where it was read first, with a warning.
3. A word that is not a permission denies, with a warning, as in RocketMQ; strict mode refuses the
   file. So it does with keys that nobody knows.
4. A file is replaced atomically and only by content that loads; the previous content stays as
   NAME.bak. Comments do not survive a rewrite, as in RocketMQ, but they are in the backup.

Blocking; `reload` and `administration` call it on a thread after the start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyromq.acl.addresses import BLANK, Expression, ExpressionError, parse_expression
from pyromq.acl.rules import (
    KEY_MIN_LENGTH,
    PERMISSION_WORDS,
    Account,
    FileVersion,
    Permission,
    Rules,
    group_resource,
    parse_permission,
)
from pyromq.base.atomic_file import write_file
from pyromq.base.settings import ENVIRONMENT

if TYPE_CHECKING:
    import yaml

DEFAULT_FILE: Final = Path("conf/plain_acl.yml")
FOLDER: Final = Path("conf/acl")
#: Bytes of one file: far above any real one.
MAX_FILE_SIZE: Final = 16 * 1024 * 1024
#: The mode of a file that this module creates.
PRIVATE_MODE: Final = 0o600

GLOBAL_WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"
ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"  # noqa: S105 - the name of a field
WHITE: Final = "whiteRemoteAddress"
ADMIN: Final = "admin"
PEER: Final = "peer"
DEFAULT_TOPIC: Final = "defaultTopicPerm"
DEFAULT_GROUP: Final = "defaultGroupPerm"
TOPIC_PERMS: Final = "topicPerms"
GROUP_PERMS: Final = "groupPerms"

_ROOT_KEYS: Final = frozenset({GLOBAL_WHITE, ACCOUNTS, DATA_VERSION})
_ACCOUNT_KEYS: Final = frozenset(
    {
        ACCESS_KEY,
        SECRET_KEY,
        WHITE,
        ADMIN,
        PEER,
        DEFAULT_TOPIC,
        DEFAULT_GROUP,
        TOPIC_PERMS,
        GROUP_PERMS,
    }
)
_NAMED: Final = 100


class AclFileError(ValueError):
    """A file that cannot be used; the message names the file and the line."""


class MissingYamlError(AclFileError):
    """PyYAML is not installed."""


class AclFiles:
    """The files of one server, below its home directory."""

    def __init__(self, home: Path, *, strict: bool = False, default: Path = DEFAULT_FILE) -> None:
        self.home = home
        self.strict = strict
        self.default = home / default
        self.folder = home / FOLDER

    def paths(self) -> list[Path]:
        """Return the files that exist, in the order in which they count."""
        found = []
        if self.folder.is_dir():
            found = sorted(
                path
                for path in self.folder.rglob("*")
                if path.suffix in (".yml", ".yaml") and path.is_file()
            )
        if self.default.is_file() and self.default not in found:
            found.append(self.default)
        return found

    def stamps(self) -> dict[Path, tuple[int, int, int]]:
        """Return what changes with each rewrite of a file: time, size and inode."""
        stamps = {}
        for path in self.paths():
            status = path.stat()
            stamps[path] = status.st_mtime_ns, status.st_size, status.st_ino
        return stamps

    def load(self) -> Rules:
        """Read all files. Raises AclFileError or OSError."""
        accounts: dict[str, Account] = {}
        white: list[Expression] = []
        versions: dict[str, FileVersion] = {}
        warnings: list[str] = []
        for path in self.paths():
            reader = _Reader(path, read_text(path), strict=self.strict)
            warnings += _mode_warnings(path)
            if reader.is_empty:
                warnings.append(f"{path} is empty")
                continue
            versions[str(path)] = reader.version()
            white += reader.global_white()
            for account in reader.accounts():
                if account.access_key in accounts:
                    reader.warn(f"accessKey {account.access_key} occurs again and is ignored here")
                else:
                    accounts[account.access_key] = account
            warnings += reader.warnings
        return Rules(accounts, tuple(white), versions, tuple(warnings))

    def holds(self, path: Path) -> bool:
        """Return whether a path is one of the files."""
        return path in self.paths()

    def check(self, path: Path, content: bytes) -> None:
        """Check content before it is written to `path`. Raises AclFileError."""
        reader = _Reader(path, content, strict=self.strict)
        if not reader.is_empty:
            reader.version()
            list(reader.global_white())
            list(reader.accounts())

    def write(self, path: Path, data: dict[str, Any]) -> None:
        """Replace a file, if the content loads. Raises AclFileError or OSError."""
        content = dump(data)
        self.check(path, content)
        path = path.resolve()  # replace the target of a link, not the link
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else PRIVATE_MODE
        write_file(path, content, mode=mode, backup=True)


def read_text(path: Path) -> bytes:
    """Return the content of a file. Raises AclFileError if it is too large, or OSError."""
    size = path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise AclFileError(f"{path} has {size} bytes, limit {MAX_FILE_SIZE}")
    return path.read_bytes()


def read_data(path: Path) -> dict[str, Any]:
    """Return the values of a file as they are, for a rewrite. Raises AclFileError or OSError."""
    if not path.exists():
        return {}
    module = _yaml()
    content = read_text(path)
    try:
        data = module.load(content, _loader(module))
    except module.YAMLError as error:
        raise AclFileError(_yaml_fault(path, error)) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise AclFileError(f"{path}: expected a map")
    return data


def dump(data: dict[str, Any]) -> bytes:
    """Return the text of a file in block style."""
    text: str = _yaml().safe_dump(
        data, default_flow_style=False, sort_keys=False, allow_unicode=True
    )
    return text.encode()


class _Reader:
    """Reads one file, node by node, so that errors have lines."""

    def __init__(self, path: Path, content: bytes, *, strict: bool) -> None:
        self._path = path
        self._strict = strict
        self.warnings: list[str] = []
        self._module = module = _yaml()
        loader = _loader(module)(content)
        try:
            root = loader.get_single_node()
        except module.YAMLError as error:
            raise AclFileError(_yaml_fault(path, error)) from None
        finally:
            loader.dispose()
        self._constructor = module.constructor.SafeConstructor()
        self.is_empty = root is None or (
            isinstance(root, module.ScalarNode) and self._value(root) is None
        )
        self._root = {} if self.is_empty else self._map(root, _ROOT_KEYS, "the file")

    def version(self) -> FileVersion:
        """Return the version that the last administrative change wrote."""
        node = self._root.get(DATA_VERSION)
        for item in self._items(node, DATA_VERSION):
            fields = self._map(item, None, DATA_VERSION)
            numbers = [
                self._value(fields[key]) for key in ("counter", "timestamp") if key in fields
            ]
            if len(numbers) != 2 or not all(type(number) is int for number in numbers):
                self._fail(item, f"{DATA_VERSION} needs counter and timestamp, both numbers")
            return FileVersion(*numbers)
        return FileVersion()

    def global_white(self) -> Iterator[Expression]:
        """Yield the addresses that pass without a check."""
        for item in self._items(self._root.get(GLOBAL_WHITE), GLOBAL_WHITE):
            yield self._expression(item, GLOBAL_WHITE)

    def accounts(self) -> Iterator[Account]:
        """Yield the accounts in the order of the file."""
        for item in self._items(self._root.get(ACCOUNTS), ACCOUNTS):
            yield self._account(item)

    def warn(self, text: str, node: yaml.Node | None = None) -> None:
        """Note something that the operator should know."""
        line = "" if node is None else f":{node.start_mark.line + 1}"
        self.warnings.append(f"{self._path}{line}: {text}")

    def _account(self, item: yaml.Node) -> Account:
        fields = self._map(item, _ACCOUNT_KEYS, "an account")
        keys = []
        for name in (ACCESS_KEY, SECRET_KEY):
            node = fields.get(name, item)
            text = self._text(node, name) if name in fields else ""
            if name == SECRET_KEY:
                text = self._resolved(node, text)
            if len(text) < KEY_MIN_LENGTH:
                # Not the value: it may be a secret.
                self._fail(node, f"{name} needs at least {KEY_MIN_LENGTH} characters")
            keys.append(text)
        resources: dict[str, Permission] = {}
        # Topics last: RocketMQ lets a topic `%RETRY%g` override the group g.
        resources |= self._resources(fields, GROUP_PERMS, group_resource)
        resources |= self._resources(fields, TOPIC_PERMS, str)
        return Account(
            access_key=keys[0],
            secret_key=keys[1],
            is_admin=self._flag(fields, ADMIN),
            is_peer=self._flag(fields, PEER),
            default_topic=self._default(fields, DEFAULT_TOPIC),
            default_group=self._default(fields, DEFAULT_GROUP),
            resources=resources,
            white=self._expression(fields[WHITE], WHITE) if WHITE in fields else BLANK,
        )

    def _resolved(self, node: yaml.Node, text: str) -> str:
        """Return a secret, which may be the `${NAME}` of an environment variable."""
        reference = ENVIRONMENT.fullmatch(text)
        if reference is None:
            return text
        if reference[1] not in os.environ:
            self._fail(node, f"{SECRET_KEY}: environment variable {reference[1]} is not set")
        return os.environ[reference[1]]

    def _resources(
        self, fields: dict[str, yaml.Node], key: str, resource_of: Callable[[str], str]
    ) -> dict[str, Permission]:
        resources = {}
        for item in self._items(fields.get(key), key):
            text = self._text(item, key)
            parts = [part for part in text.split("=") if part]
            if len(parts) != 2 or (self._strict and text.count("=") != 1):
                self._fail(item, f"{key}: {text!r:.{_NAMED}} is not name=PERMISSION")
            resources[resource_of(parts[0].strip())] = self._permission(item, parts[1], key)
        return resources

    def _default(self, fields: dict[str, yaml.Node], key: str) -> Permission:
        if key not in fields or self._value(fields[key]) is None:
            return Permission.DENY
        return self._permission(fields[key], self._text(fields[key], key), key)

    def _permission(self, node: yaml.Node, word: str, key: str) -> Permission:
        found = parse_permission(word)
        if found is not None:
            return found
        fault = f"{key}: {word!r:.{_NAMED}} is not a permission ({', '.join(PERMISSION_WORDS)})"
        if self._strict:
            self._fail(node, fault)
        self.warn(f"{fault} and denies everything", node)
        return Permission.DENY

    def _flag(self, fields: dict[str, yaml.Node], key: str) -> bool:
        if key not in fields:
            return False
        value = self._value(fields[key])
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if value is None:
            return False
        if not isinstance(value, bool):
            self._fail(fields[key], f"{key}: expected true or false")
        return value

    def _expression(self, node: yaml.Node, key: str) -> Expression:
        if self._value(node) is None:
            return BLANK
        try:
            expression = parse_expression(self._text(node, key), strict=self._strict)
        except ExpressionError as error:
            self._fail(node, f"{key}: {error}")
        if expression.warning:
            self.warn(f"{key}: {expression.text!r:.{_NAMED}} {expression.warning}", node)
        return expression

    # Nodes

    def _map(
        self, node: yaml.Node, known: frozenset[str] | None, what: str
    ) -> dict[str, yaml.Node]:
        if not isinstance(node, self._module.MappingNode):
            self._fail(node, f"{what}: expected a map")
        self._constructor.flatten_mapping(node)
        fields: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, self._module.ScalarNode):
                self._fail(key_node, f"{what}: a key is not a word")
            key = str(key_node.value)
            if known is not None and key not in known:
                self._complain(key_node, f"unknown key {key!r:.{_NAMED}} in {what}")
            if key in fields:
                self._complain(key_node, f"{key!r:.{_NAMED}} occurs twice; the last one counts")
            fields[key] = value
        return fields

    def _complain(self, node: yaml.Node, text: str) -> None:
        if self._strict:
            self._fail(node, text)
        self.warn(text, node)

    def _items(self, node: yaml.Node | None, key: str) -> list[yaml.Node]:
        if node is None or (
            isinstance(node, self._module.ScalarNode) and self._value(node) is None
        ):
            return []
        if not isinstance(node, self._module.SequenceNode):
            self._fail(node, f"{key}: expected a list")
        return list(node.value)

    def _text(self, node: yaml.Node, key: str) -> str:
        value = self._value(node)
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            self._fail(node, f"{key}: expected a text; put the value in quotes")
        return str(value)

    def _value(self, node: yaml.Node) -> Any:
        if not isinstance(node, self._module.ScalarNode):
            self._fail(node, "expected a single value")
        try:
            return self._constructor.construct_object(node)
        except (self._module.YAMLError, ValueError):
            self._fail(node, "the value cannot be read; put it in quotes")

    def _fail(self, node: yaml.Node, text: str) -> NoReturn:
        raise AclFileError(f"{self._path}:{node.start_mark.line + 1}: {text}")


def _yaml() -> Any:
    """Import PyYAML, which only servers with access control need."""
    try:
        import yaml
    except ImportError as error:
        raise MissingYamlError("access control needs PyYAML: pip install 'pyromq[acl]'") from error
    return yaml


def _loader(module: Any) -> Any:
    """Return the safe loader, the compiled one if there is one."""
    return getattr(module, "CSafeLoader", module.SafeLoader)


def _yaml_fault(path: Path, error: Exception) -> str:
    """Describe a syntax error without quoting the file, which holds secrets."""
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f":{mark.line + 1}"
    return f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'it cannot be decoded'}"


def _mode_warnings(path: Path) -> list[str]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return []
    return [f"{path} holds secrets and has mode {mode:04o}: run chmod 600 {path}"]
