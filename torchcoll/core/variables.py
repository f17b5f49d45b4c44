"""Which environment variables a result file keeps, and what is masked as a secret.

Variables: the name of every variable that a communication library, a runtime below it or a launcher
reads. The value is kept if it has a documented form (numbers, words, lists, paths) and the name is
not that of a secret; otherwise it is ``***``. A digest would let others test guesses of a password.

Texts, labels and command lines: ``masked`` replaces what looks like a secret and keeps the rest.

Shell code that torchcoll prints: the name of a variable is a ``Name``, which mypy enforces, as a
name cannot be quoted: ``NCCL_X=1; rm -r ~; NCCL_Y`` from a file would become code.

It is one file without imports, because ranks load at most 25 of torchcoll. All expressions are
bounded: the time is linear in the length of the text.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NewType, TypeVar

MASK = "***"

# In any part of a name.
_STRONG = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PASSCODE|JWT|COOKIE|CRED(?!IT(?!ENTIAL))|BEARER|"
    r"SIGNATURE|API_?K|(?:ACCESS|PRIVATE|ACCOUNT|SHARED|AUTH|ENCRYPTION|SIGNING|MASTER)_?KEY|PWD|"
    r"AUTHORI[SZ]ATION|(?:STORE|KEY)_?PASS$|KENNWORT|MOT_?DE_?PASSE|CONTRASE[NÑ]A|密码|密碼|口令"
)
_STRONG_WORDS = {"PSK", "OTP", "TOTP", "HMAC", "PW"}
# Words that a label or an option may have without being a secret: the value has to look like one.
_WEAK = """
    KEY SESSION SIG SALT CERT PAT PIN NONCE SAS CODE SID SESSID SESSIONID JSESSIONID PHPSESSID
"""
_WEAK_WORDS = frozenset(_WEAK.split())
_LOOSE_WORDS = {"AUTH", "PASS"}
_FLAGS = {"", "0", "1", "on", "off", "yes", "no", "true", "false", "none", "null"}
_NUMBER = re.compile(r"[\d.,]{1,12}[kKMGT]?")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def name_words(name: str) -> list[str]:
    """``xAmzSignature`` and ``X-Amz-Signature``: ["X", "AMZ", "SIGNATURE"]."""
    return [token.upper() for token in _WORD.findall(name)]


def names_secret(name: str) -> bool:
    """Whether what people call so (a label, an option, a JSON member) is a secret."""
    plain = name.upper().replace("-", "_")
    return bool(_STRONG.search(plain)) or not _STRONG_WORDS.isdisjoint(name_words(name))


def is_secret_setting(name: str, value: str) -> bool:
    """Whether a value is a secret, by its name and form: ``pin=on``, ``tokens=4096`` stay."""
    if value.lower() in _FLAGS:
        return False
    if names_secret(name):
        if "TOKEN" in name.upper():
            return not _NUMBER.fullmatch(value)
        return not (name.upper().endswith("PWD") and value.startswith("/"))
    tokens = name_words(name)
    if len(tokens) > 1 and tokens[-1] == "PASS":  # DB_PASS
        return not _NUMBER.fullmatch(value)
    if not _LOOSE_WORDS.isdisjoint(tokens):
        return len(value) >= 6 and bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value))
    return not _WEAK_WORDS.isdisjoint(tokens) and any(map(_is_mixed, _RUN.findall(value)))


def is_secret_option(option: str, value: str) -> bool:
    """Whether the word behind an option of a command line is a secret: ``--token x``."""
    name = option.lstrip("-")
    if name in ("u", "user", "proxy-user"):  # curl's user:password; docker has numbers there
        return bool(re.fullmatch(r"[^:]+:.+", value)) and not value.replace(":", "").isdigit()
    secret = names_secret(name) or name_words(name)[-1:] == ["PASS"]
    return secret and is_secret_setting(f"x_{name}", value)


_RUN = re.compile(r"[A-Za-z0-9]{8,}")


def _is_mixed(run: str) -> bool:
    """Letters and digits in turn, as in a key; not ``night`` or ``20260105``."""
    return _class_changes(run) >= (2 if len(run) < 16 else 1)


def _class_changes(run: str) -> int:
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run]
    return sum(a != b for a, b in pairwise(kinds))


# Tokens that GPU nodes have and whose maker begins them with a prefix of its own (rules of gitleaks
# and detect-secrets, July 2026). Others are found by how they are mixed, or by the name before.
_PREFIXED = (
    r"gh[a-z]_[A-Za-z0-9]{20,}",  # GitHub
    r"github_pat_\w{20,}",
    r"gl[a-z]{2,6}-[\w.-]{16,}",  # GitLab
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{16,}",
    r"dckr_[a-z]{3}_[\w-]{16,}",
    r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"(?:ABSK|bedrock-api-key-)[\w+/=]{20,}",
    r"AIza[\w-]{30,}",  # Google
    r"ya29\.[\w-]{20,}",
    r"GOCSPX-[\w-]{20,}",
    r"[\w.~]{3}\dQ~[\w.~-]{30,}",  # Azure
    r"dapi[a-fA-F0-9]{32,}",  # Databricks
    r"hv[sbr]\.[\w-]{20,}",  # Vault
    r"tskey-[\w-]{16,}",  # Tailscale
    r"(?:hf|api_org)_[A-Za-z0-9]{20,}",  # Hugging Face
    r"(?:sk|gsk|xai|pplx)[-_](?=[\w-]*\d)[\w-]{20,}",  # OpenAI, Anthropic and their like
    r"nvapi-[\w-]{30,}",  # NVIDIA
    r"wandb_v\d_\w{20,}",
    r"xox[a-z]{1,2}[-.][\w.-]{8,}",  # Slack
    r"xapp-\d-[\w-]{16,}",
    r"hooks\.slack\.com/[\w/]{16,}",
    # of no maker: JSON Web Tokens and other JSON in base64, the hashes of passwords
    r"eyJ[\w+/=-]{12,}(?:\.[\w+/=-]*){0,4}",
    r"\$(?:2[abxy]|argon2id?|[156y])\$[\w./$=,+-]{16,}",
)


@functools.cache
def _prefixed() -> re.Pattern[str]:
    """Compiled at first use: most ranks never mask anything."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})")


@functools.cache
def _shapes() -> tuple[re.Pattern[str], ...]:
    return tuple(map(re.compile, _SHAPES))


_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{1,60}-----.*?(?:-----END [A-Z0-9 ]{1,60}-----|\Z)", re.S)
_HEADER = re.compile(
    r"(?<![A-Za-z0-9])((?:proxy[-_]?)?authori[sz]ation|(?:set[-_]?)?cookie)"
    r"(\\?[\"']?(?:\s|%20){0,3}(?:=>|[=:]|%3A|\s)(?:\s|%20){0,3}\\?[\"']?)"
    r"((?:(?:bearer|basic|token|digest|negotiate|ntlm|api-?key|aws4-hmac-sha256)"
    r"(?:\s|%20|\+){1,3})?)"
    r"[^\"'\\\n]+",
    re.I,
)
_HEADER_NAME = re.compile("authori[sz]ation|cookie", re.I)
_BEARER = re.compile(r"(?<![A-Za-z])(bearer(?:\s|%20|[:=+]){1,4}[\"']?)[^\s\"',;]+", re.I)
_BASIC = re.compile(
    r"(?<![A-Za-z])((?i:basic)\s{1,3})(?=\S*[a-z][A-Z]|\S*\d|\S*=)[A-Za-z0-9+/]{8,}={0,2}"
)
_QUOTED = r'"(?:[^"\\]|\\.)*"?|\'(?:[^\'\\]|\\.)*\'?|\\"(?:[^"\\]|\\[^"])*(?:\\")?'
_VALUE = re.compile(rf"{_QUOTED}|[^\s&]+")
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[^\W\d][\w.-]{0,80})\\?[\"']?\]?\s{0,3}(?::=|=>|[=:\uff1a])\s{0,3}"
)
_OPTION = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{0,80})\s{1,3}(?=[^\s-])")
_LISTED = re.compile(  # ["--token", "x"] and --token,x
    r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{0,80})[\"']?\s{0,3},\s{0,3}[\"']?(?=[^\s\"',-])"
)
_PROPERTY = re.compile(  # spark.hadoop.fs.s3a.secret.key x
    r"(?<!\S)(?P<name>[A-Za-z][\w-]{0,40}(?:\.[\w-]{1,40}){2,8})\s{1,9}(?=\S)"
)
_ELEMENT = re.compile(
    r"<(?:name>(?P<property>[\w:.-]{1,80})</name>\s{0,9}<value|(?P<name>[A-Za-z][\w:.-]{0,80}))>"
    r"(?=[^<\s])"
)
_MEMBER = re.compile(  # {"name": "DB_PASSWORD", "value": "x"}
    r"\b(?:name|key)\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"'](?P<name>[\w.-]{1,80})\\?[\"']"
    r"\s{0,3},?\s{0,3}"
    r"\\?[\"']?value\\?[\"']?\s{0,3}[:=]\s{0,3}",
    re.I,
)
_QUERY = re.compile(r"(?<=[?&;#])(?P<name>[A-Za-z_][\w.-]{0,80})=(?=[^\s&])")
_QUERY_VALUE = re.compile(r"[^\s&#\"'<>]*")
_QUERY_WORDS = _WEAK_WORDS | _LOOSE_WORDS | {"CREDENTIAL"}
# Of each the groups before the secret, and the secret.
_SHAPES = (
    r"(\blogin\s+\S{1,80}\s+password\s+)\S+",  # netrc
    r"(\bwandb\s+login\s+(?:--\S+\s+){0,3})[^\s-]\S*",
    r"(\bpassword\s+)\S+(?=\s+(?:login|account|machine)\b)",
    r"(\bauth\w{0,10}\s{0,3}=\s{0,3}\()[^()\n]{3,200}(?=\))",  # auth=('u','pw')
    r"(?i:(%3A%2F%2F))[^\s/&]{1,200}?(?=%40)",  # http%3A%2F%2Fu%3Apw%40h
    r"((?:thin:|\bsqlplus\s+(?:-\S+\s+){0,3})[\w$#]{1,60}/)[^\s/@]{1,100}(?=@)",  # Oracle
    r"((?<![^\s=,;'\"])[\w.*-]{1,80}:(?:\d{4,5}|\*):[\w.*-]{1,60}:(?=[\w.*-]*[A-Za-z*])[\w.*-]{1,60}:)"
    r"[^\s:'\"]+(?![^\s'\"])",  # .pgpass
)
# Program -> its option of one letter that has a password, as the next word or glued to it.
_TOOLS = {
    "sshpass": r"p",
    "mysql": r"p(?=\S)",
    "login": r"p",  # of docker, podman, az
    "ipmitool": r"P",
    "redis": r"a",
    "ldap": r"w",
    "snmp": r"c",
    "curl": r"u(?=\S*:)",
    "smbclient": r"U(?=\s?\S*%)",
}
_TOOL = re.compile(
    r"(?<![\w.-])(?:(?P<a>sshpass|ipmitool|curl|smbclient)|(?P<b>mysql|redis|ldap|snmp)[a-z-]{0,9}"
    r"|(?:docker|podman|az|helm|oras)(?:\s[a-z]{2,12})?\s(?P<c>login))\s"
)
_COMMAND = re.compile(r"[^\n|;&]{0,500}")
_ADDRESS = re.compile(r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_USER = re.compile(r"(?:(?<![\w@./:+%\\-])|(?<=//))[\w.+%\\-]{1,64}:")
_REST = re.compile(r"\S{0,1000}")
_PORT = re.compile(r"\d{1,5}(?:[,;/:@]|$)")
_LONG = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z0-9]{20,}(?![A-Za-z0-9/])|[A-Za-z0-9+/]{40,}={0,2}(?!/)"
)


def masked(text: str) -> str:
    """The text with every secret in it replaced by ``***``; names and addresses stay readable."""
    if len(text) < 6:
        return text
    text = _PEM.sub(MASK, text)
    text = _prefixed().sub(MASK, text)
    text = _HEADER.sub(rf"\1\2\3{MASK}", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _BASIC.sub(rf"\1{MASK}", text)
    for shape in _shapes():
        text = shape.sub(rf"\1{MASK}", text)
    text = _mask_options_of_programs(text)
    text = _replaced(text, _MEMBER, _named_value)
    text = _replaced(text, _QUERY, _query_value)
    text = _replaced(text, _NAMED, _named_value)
    text = _replaced(text, _OPTION, _option_value)
    text = _replaced(text, _LISTED, _option_value)
    text = _replaced(text, _PROPERTY, _named_value)
    text = _replaced(text, _ELEMENT, _element_value)
    text = _replaced(text, _ADDRESS, _user_of_address)
    if "@" in text:
        text = re.sub(r"\S+", lambda match: _without_password(match[0]), text)
    return _LONG.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def _mask_options_of_programs(text: str) -> str:
    """Mask ``curl -uuser:pw`` and ``sshpass -p pw``: of each program the first such option."""

    def find(text: str, match: re.Match[str]) -> tuple[int, int] | None:
        option = _TOOLS[match["a"] or match["b"] or match["c"]]
        command = _COMMAND.match(text, match.end() - 1)
        assert command
        password = re.search(rf"\s-{option}\s?(?P<secret>[^\s-]\S*)", command[0])
        start = match.end() - 1
        if password is None:
            return None
        return start + password.start("secret"), start + password.end("secret")

    return _replaced(text, _TOOL, find)


# (text, what was matched) -> (start, end) of what to mask behind it; None: nothing.
_Find = Callable[[str, "re.Match[str]"], "tuple[int, int] | None"]


def _replaced(text: str, pattern: re.Pattern[str], find: _Find) -> str:
    """With what ``find`` says masked; behind a match of which nothing is, the search goes on."""
    pieces, end, position = [], 0, 0
    while match := pattern.search(text, position):
        position = match.end()
        if span := find(text, match):
            pieces += [text[end : span[0]], MASK]
            end = span[1]
            position = max(position, end)
    return "".join([*pieces, text[end:]])


def _value_at(text: str, start: int) -> tuple[int, int]:
    """(start, end) of the value, without the quotes around it."""
    match = _VALUE.match(text, start)
    if match is None:
        return start, start
    value, first = match[0], len(match[0]) - len(match[0].lstrip("\\\"'"))
    # A backslash is of the quote behind it, else of the value.
    first = first if value[:1] in "\"'" or value[:2] == '\\"' else 0
    last = len(value.rstrip("\\\"'")) if first else len(value)
    return start + first, start + max(first, last)


# So much of a value is looked at: values in each other must not be read again and again.
_JUDGED = 1000


def _named_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    if _HEADER_NAME.search(match["name"]):  # masked by now, its scheme (Bearer) aside
        return None
    return _judged(text, match, is_secret_setting)


def _judged(
    text: str, match: re.Match[str], judge: Callable[[str, str], bool]
) -> tuple[int, int] | None:
    begin = text[match.end() : match.end() + _JUDGED]
    start, end = _value_at(begin, 0)
    if start < end and judge(match["name"], begin[start:end]):
        return _value_at(text, match.end())
    return None


def _query_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    end = _QUERY_VALUE.match(text, match.end()).end()  # type: ignore[union-attr]
    value, name = text[match.end() : end], match["name"]
    if value.lower() in _FLAGS or _NUMBER.fullmatch(value):
        return None
    secret = names_secret(name) or not _QUERY_WORDS.isdisjoint(name_words(name))
    return (match.end(), end) if secret and len(value) > 3 else None


def _option_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    return _judged(text, match, is_secret_option)


def _element_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    end = text.find("<", match.end())
    end = len(text) if end < 0 else end
    value = text[match.end() : end]
    name = match["property"] or match["name"]
    return (match.end(), end) if is_secret_setting(name, value) else None


def _user_of_address(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """``user:password`` or a token; a password may have any character, blanks aside."""
    rest = _REST.match(text, match.end())[0]  # type: ignore[index]
    head = re.split(r"[/?#]", rest, maxsplit=1)[0]
    first = re.split(r"[,;]", head, maxsplit=1)[0]
    user, colon, behind = head.partition(":")
    if "@" in head and not ("@" not in first and _PORT.match(first.partition(":")[2])):
        length = (rest if ":" in head.partition("@")[0] else head).rindex("@")
    elif colon and "@" in rest and "@" not in user and behind and not _PORT.match(behind):
        length = rest.rindex("@")  # the password has a slash
    else:
        return None
    return match.end(), match.end() + length


_LETTER = re.compile(r"[^\W\d_]")


def _without_password(token: str) -> str:
    """Masks ``user:password@host``; not ``10.0.0.1:80,b@c``, ``gpu:0@n1``, ``x:1@sha256:...``."""
    at = token.rfind("@")
    host = token[at + 1 :]
    if at < 0 or not (host[:1].isalnum() or host[:1] == "[") or host.startswith("sha256:"):
        return token
    if token[at - 1] == ":" or not _LETTER.search(token, 0, at):  # 0-4k:@knomial, 1:0-100@2-4
        return token
    for user in _USER.finditer(token, 0, at):
        if not (token.startswith("//", user.end()) or _PORT.match(token, user.end(), at + 1)):
            return f"{token[: user.start()]}{MASK}{token[at:]}"
    return token


_VOWELS = re.compile(r"[a-z]{3,}")
_LEAST_CHANGES, _MOST_WORDS = 0.4, 0.35


def _is_random(run: str) -> bool:
    """Whether letters and digits are mixed as in no name or path: in random base64 three neighbours
    in five differ in class. Hexadecimal hashes stay.
    """
    if not (re.search("[a-z]", run) and re.search("[A-Z]", run) and re.search(r"\d", run)):
        return False
    tokens = [token for token in _VOWELS.findall(run) if re.search("[aeiou]", token)]
    return _class_changes(run) >= _LEAST_CHANGES * (len(run) - 1) and sum(
        map(len, tokens)
    ) < _MOST_WORDS * len(run)


# The registry of variables: by prefix, what a variable with it belongs to. SETTINGS change how a
# collective runs; RUNTIME is what the process has of devices, threads and torch; JOB is of one job.
SETTINGS, RUNTIME, JOB = "settings", "runtime", "job"
PREFIXES_OF = {
    SETTINGS: """
        NCCL_ RCCL_ TORCH_NCCL_ OFI_NCCL_ MSCCL_ MSCCLPP_ NVSHMEM_ SHARP_ HPCX_ HCOLL_
        UCX_ UCC_ TORCH_UCC_ GLOO_ TORCH_GLOO_ TP_ CCL_ FI_ I_MPI_ MPIR_ MPICH_
        OMPI_MCA_btl OMPI_MCA_coll OMPI_MCA_mtl OMPI_MCA_pml
        CXI_ MLX4_ MLX5_ PSM2_ PSM3_ RDMAV_ IBV_ HFI_ ZE_ ZES_ UR_ HSA_ KMP_ GPU_MAX_HW_QUEUES
        CUDA_DEVICE_MAX_CONNECTIONS OMP_NUM_THREADS
    """,
    RUNTIME: """
        CUDA_CACHE_ CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_MPS_
        CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NVIDIA_IMEX_CHANNELS GPU_DEVICE_ORDINAL
        HIP_ ROCR_ AMD_ NEO_ SYCL_ ONEAPI_ TORCH_ PYTORCH_ OMP_ GOMP_ MKL_ LD_PRELOAD
    """,
    JOB: """
        SLURM_ PBS_ PALS_ LSB_ FLUX_ JSM_ PMI_ PMIX_ OMPI_ HYDRA_ HYDI_ I_MPI_HYDRA_
        TORCHELASTIC_ MASTER_ADDR MASTER_PORT
    """,
}
_KINDS = {prefix: kind for kind, text in PREFIXES_OF.items() for prefix in text.split()}
_PREFIXES = tuple(sorted(_KINDS, key=len, reverse=True))

# `torchcoll matrix` and `versus` name in it the variables that they set: nobody forgot those.
SET_ON_PURPOSE = "TORCHCOLL_SET"


def kind_of(name: str) -> str | None:
    """SETTINGS, RUNTIME or JOB; None for a variable that no file keeps."""
    if not name.startswith(_PREFIXES):
        return None
    return _KINDS[next(prefix for prefix in _PREFIXES if name.startswith(prefix))]


# Of variables more is a secret than of what people name themselves.
_SECRET = re.compile(r"KEY|PASS|AUTH|SESSION")
_SECRET_WORDS = {"PIN", "SIG", "PAT", "SALT", "CERT"}
_FREE_TEXT = {"COMMENT", "CMD", "COMMAND", "ARGV", "NOTE"}
# Pinning of ranks; partitions and memory keys of RDMA, which are numbers of a fabric; NCCL's
# algorithm PAT; by what oneCCL finds a schedule again.
_NO_SECRETS = re.compile(
    r"(?:^I_MPI_PIN|(?<=IB_)PKEY|(?<=_)[RLM]KEY|^NCCL_PAT(?=_ENABLE|_NDIMS)|^CCL_CACHE_KEY)"
    r"(?![A-Z])"
)


def is_secret(name: str) -> bool:
    """Whether a variable of that name may hold a secret, or whatever a person wrote."""
    upper = _NO_SECRETS.sub("", name.upper())
    tokens = set(re.split(r"[^A-Z]+", upper))
    return (
        names_secret(upper)
        or bool(_SECRET.search(upper))
        or not tokens.isdisjoint(_SECRET_WORDS | _FREE_TEXT)
    )


# The documented forms of a value: items with ``,``, ``;`` or ``|`` between them, or numbers and
# paths with blanks. An item is words, numbers with units, addresses, devices or paths, with ``:``
# or ``=`` between: ``^mlx5_0:1``, ``0-100@2-4``, ``{0:4}:8``, ``tcp://h:80``.
_PATH = r"(?:[~.]{0,2}|\$\w{1,40})/[\w.+%/*-]{0,500}"
_TOKEN = r"[\w.+*%\[\](){}<>-]{1,100}(?:/[\w.+%-]{1,100}){0,20}"
_ATOM = rf"[!^=~@]?(?:{_PATH}|{_TOKEN})"
_ITEM = re.compile(rf"(?:::)?{_ATOM}(?:(?:::?|=){_ATOM}|(?<=\d)@(?=\d){_ATOM}){{0,40}}")
_BETWEEN_ITEMS = re.compile(r"\s?[,;|]\s?|\s+(?=[/\d])")
_SIMPLE = re.compile(r"[\w.,:;-]{1,15}")  # too short for a token of any maker
_KEY_RUN = re.compile(r"[A-Za-z0-9]{8,}")
# Names that are mixed as keys are: an interface behind a PCI domain (enP2p1s0f0np0, roceP2p1s0f0),
# a GPU of AMD, a number or a mask of CPUs in hexadecimal.
_MIXED_NAMES = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:en|ib|roce)P\d{1,5}(?:[psfdn]p?\d{1,5}){1,6}|GPU-[0-9a-f]{16}"
    r"|0x(?:[0-9a-fA-F]{1,16}|[0137fFeEcC8]{17,256}))(?![A-Za-z0-9])"
)
_LONGEST_VALUE, _MOST_WORDS_OF_ITEM, _LEAST_KEY_CHANGES = 4096, 3, 4


def _has_documented_form(value: str) -> bool:
    if len(value) > _LONGEST_VALUE:
        return False
    if _SIMPLE.fullmatch(value) is None and masked(value) != value:
        return False
    return all(map(_is_item, _BETWEEN_ITEMS.split(value)))


def _is_item(item: str) -> bool:
    if item and not _ITEM.fullmatch(item):
        return False
    # More words than three in a row, as in .pgpass, are no item of a list.
    atoms = [atom for atom in re.split(r"[:=@]", item) if not atom.startswith(("/", "./", "~"))]
    names = [atom for atom in atoms if re.match(r"[^\W\d]", atom) and not _HEX.fullmatch(atom)]
    if len(names) > _MOST_WORDS_OF_ITEM or (names and _AT.search(item)):
        return False
    if any(is_secret_setting(name, value) for name, value in pairwise(atoms)):
        return False
    return not any(map(_is_key, _KEY_RUN.findall(_MIXED_NAMES.sub("", " ".join(atoms)))))


def _is_key(run: str) -> bool:
    """Whether 8 characters or more are mixed as in a password or a key, and in no setting."""
    if _class_changes(run) < _LEAST_KEY_CHANGES:
        return False
    return len(run) >= 16 or all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", r"\d"))


_AT = re.compile(r"\w@")
_HEX = re.compile(r"(?=\w*\d)[0-9a-fA-F]{1,8}")


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the registry, sorted by name; values that are not kept are ``***``."""
    return {
        name: kept_value(name, value)
        for name, value in sorted(environ.items())
        if kind_of(name) is not None
    }


def kept_value(name: str, value: str) -> str:
    """The value if it has a documented form and the name is not that of a secret, else ``***``."""
    if value.lower() in _FLAGS:
        return value
    return MASK if is_secret(name) or not _has_documented_form(_usual_form(name, value)) else value


def _usual_form(name: str, value: str) -> str:
    """The value with the separators of most variables in place of those that few have."""
    if name == "NCCL_NET":  # AWS Libfabric
        return value.replace(" ", "_")
    if name == "LD_PRELOAD":
        return value.replace(" ", ":")
    if name.startswith("UCC_"):  # allreduce:0-4k:@knomial#alltoall:inf:@pairwise
        return value.replace("#", ";")
    return value.removesuffix(":") if name.startswith("SLURM_") else value  # mask_cpu:


def masked_value(name: str, value: str) -> str:
    """The value of a variable that a person varies, as it may be kept and shown."""
    return MASK if value and is_secret(name) else masked(value)


def masked_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """None, a variable that is taken away, stays."""
    return {k: v if v is None else masked_value(k, v) for k, v in variables.items()}


def masked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a file may keep them."""
    return {k: MASK if is_secret_setting(k, v) else masked(v) for k, v in labels.items()}


def masked_words(tokens: Sequence[str]) -> list[str]:
    """A command line as a file may keep it: ``--api-token x``, ``NAME_TOKEN=x``, ``user:pass@``."""
    # \x1f is a blank for regular expressions, and no word of a command line has one.
    joined = "\x1f".join(token.replace("\x1f", " ") for token in tokens)
    shown = [masked(token) for token in _mask_options_of_programs(joined).split("\x1f")]
    for index, (option, value) in enumerate(pairwise(tokens), 1):
        if option.startswith("-") and "=" not in option and is_secret_option(option, value):
            shown[index] = MASK
    return shown if tokens else []


def masked_texts(value: Any) -> Any:
    """A JSON value with ``masked`` applied to each text in it, keys too."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, list | tuple):
        return [masked_texts(item) for item in value]
    if isinstance(value, dict):
        return {masked(str(key)): masked_texts(item) for key, item in value.items()}
    return value


Name = NewType("Name", str)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Value = TypeVar("_Value")


def is_name(text: str) -> bool:
    """Whether a shell takes the text as the name of a variable."""
    return bool(_NAME.fullmatch(text))


def name_of(text: str) -> Name:
    """The text as a Name. Raises ValueError if a shell does not take it as one."""
    if not is_name(text):
        raise ValueError(f"{text!r} is no name of a variable")
    return Name(text)


def named(variables: Mapping[str, _Value]) -> dict[Name, _Value]:
    """The variables of a file whose names are names."""
    return {Name(name): value for name, value in variables.items() if is_name(name)}


def assignments(variables: Mapping[Name, str | None]) -> str:
    """The words in front of a command: ``env -u NCCL_PROTO NCCL_ALGO=Ring``."""
    unset = [
        argument for name, value in variables.items() if value is None for argument in ("-u", name)
    ]
    settings = [f"{n}={shlex.quote(v)}" for n, v in variables.items() if v is not None]
    return " ".join([*(["env", *unset] if unset else []), *settings])


def exports(variables: Mapping[Name, str]) -> list[str]:
    """``export NCCL_ALGO=Ring``: a line for each variable."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def command_line(argv: Sequence[str], variables: Mapping[Name, str | None]) -> str:
    """As it can be typed, but for secrets: ``env -u NCCL_PROTO NCCL_ALGO=Ring torchrun ...``."""
    shown = {n: v if v is None else masked_value(n, v) for n, v in variables.items()}
    return " ".join(filter(None, [assignments(shown), shlex.join(masked_words(argv))]))
