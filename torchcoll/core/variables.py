"""Which environment variables a result file keeps, of our own runs and of imported ones; and what
of them, of command lines, labels and texts is masked, because it is or may be a secret.

The name of a variable is judged by its words, so that what changes how a collective runs stays
readable: I_MPI_PIN_DOMAIN, NCCL_IB_PKEY (a partition), ..._PINNED, ..._CREDITS. What a person says
freely (a comment, the command line of a job) is masked whole: nobody knows what is in it. Values
are judged, too (``hf_...`` under any name).

A scanner such as detect-secrets or gitleaks is not a dependency: masking happens on ranks, where
nothing but the standard library and torch may be imported, and it has to find where a secret begins
and ends, not only in which line it is. Their knowledge is a table of regular expressions, which is
here; all of it is one file because ranks load at most 25 of torchcoll. All expressions are bounded:
the time is linear in the length of the text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from torchcoll.core.backends import PREFIXES as BACKEND_PREFIXES

MASK = "***"

# In any part of a name.
_STRONG = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|PASSCODE|JWT|COOKIE|CRED(?!IT(?!ENTIAL))|BEARER|"
    r"SIGNATURE|API_?K|(?:ACCESS|PRIVATE|ACCOUNT|SHARED|AUTH|ENCRYPTION|SIGNING|MASTER)_?KEY|PWD|"
    r"AUTHORI[SZ]ATION"
)
_STRONG_WORDS = {"PSK", "OTP", "TOTP", "HMAC", "PW"}
# Words that a label or an option may have without being a secret: the value has to look like one.
_WEAK_WORDS = {"KEY", "SESSION", "SIG", "SALT", "CERT", "PAT", "PIN", "NONCE", "SAS", "CODE"}
_LOOSE_WORDS = {"AUTH", "PASS"}
_FLAGS = {"", "0", "1", "on", "off", "yes", "no", "true", "false", "none", "null"}
_NUMBER = re.compile(r"[\d.,]{1,12}[kKMGT]?")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def name_words(name: str) -> set[str]:
    """``xAmzSignature`` and ``X-Amz-Signature``: {"X", "AMZ", "SIGNATURE"}."""
    return {token.upper() for token in _WORD.findall(name)}


def names_secret(name: str) -> bool:
    """Whether what people call so (a label, an option, a JSON member) is a secret."""
    plain = name.upper().replace("-", "_")
    return bool(_STRONG.search(plain)) or not name_words(name).isdisjoint(_STRONG_WORDS)


def is_secret_setting(name: str, value: str) -> bool:
    """Whether the value is a secret, by its name and, where that says little, by what it is.

    Masked labels make different runs alike: ``pin=on`` and ``tokens=4096`` stay.
    """
    if value.lower() in _FLAGS:
        return False
    if names_secret(name):
        if "TOKEN" in name.upper():
            return not _NUMBER.fullmatch(value)
        return not (name.upper().endswith("PWD") and value.startswith("/"))
    tokens = name_words(name)
    if tokens & _LOOSE_WORDS:
        return len(value) >= 6 and bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value))
    return bool(tokens & _WEAK_WORDS) and any(map(_is_mixed, _RUN.findall(value)))


def is_secret_option(option: str, value: str) -> bool:
    """Whether the word behind an option of a command line is a secret: ``--token x``."""
    name = option.lstrip("-")
    if name in ("u", "user", "proxy-user"):  # curl's user:password; docker has numbers there
        return bool(re.fullmatch(r"[^:]+:.+", value)) and not value.replace(":", "").isdigit()
    return names_secret(name) and is_secret_setting(name, value)


_RUN = re.compile(r"[A-Za-z0-9]{8,}")


def _is_mixed(run: str) -> bool:
    """Letters and digits in turn, as in a key; not ``night`` or ``20260105``."""
    return _class_changes(run) >= (2 if len(run) < 16 else 1)


def _class_changes(run: str) -> int:
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run]
    return sum(a != b for a, b in pairwise(kinds))


# Tokens that their maker begins with a prefix of its own. Sources: the default rules of gitleaks
# (config/gitleaks.toml, MIT) and detect-secrets (detect_secrets/plugins, Apache 2.0), both July
# 2026, and the makers' own pages on what their tokens look like. Lengths are the least of what was
# ever issued, so that a later format is still found.
_PREFIXED = (
    # code and packages
    r"gh[a-z]_[A-Za-z0-9]{20,}",
    r"github_pat_\w{20,}",
    r"gl[a-z]{2,6}-[\w.-]{16,}",
    r"GR1348941[\w-]{16,}",
    r"npm_[A-Za-z0-9]{30,}",
    r"pypi-[\w-]{16,}",
    r"rubygems_[a-fA-F0-9]{40,}",
    r"CLOJARS_[A-Za-z0-9]{40,}",
    r"dckr_[a-z]{3}_[\w-]{16,}",
    r"AKCp[A-Za-z0-9]{40,}",
    r"cmVmd[A-Za-z0-9]{50,}",
    r"ATATT[\w=-]{20,}",
    r"AT(?:BB|CTT3)[\w=-]{20,}",
    r"oy2[a-z0-9]{43}",
    r"sgp_\w{32,}",
    r"(?:bkua|cio|crates)_[A-Za-z0-9]{30,}",
    # clouds
    r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[A-Z0-9]{16}",
    r"ABSK[\w+/=]{60,}",
    r"AIza[\w-]{30,}",
    r"ya29\.[\w-]{20,}",
    r"GOCSPX-[\w-]{20,}",
    r"1//0[\w-]{20,}",
    r"LTAI[A-Za-z0-9]{12,}",
    r"AKID[A-Za-z0-9]{20,}",
    r"[\w.~]{3}\dQ~[\w.~-]{30,}",
    r"do[a-z]_v1_[a-f0-9]{40,}",
    r"v1\.0-[a-f0-9]{24}-\w+",
    r"(?:fo1_|fm[12][a-z]?_)[\w+/=-]{30,}",
    r"nf[a-z]_[A-Za-z0-9]{30,}",
    r"HRKU-[\w-]{30,}",
    r"tk-us-[\w-]{40,}",
    r"pscale_[a-z]+_[\w=.-]{24,}",
    r"sbp_[a-f0-9]{30,}",
    r"sb_secret_[\w-]{20,}",
    r"ocid1\.credential\.[\w.]{20,}",
    r"dapi[a-fA-F0-9]{32}",
    r"sha256~[\w-]{40,}",
    r"tskey-[\w-]{16,}",
    r"t1\.[\w-]{80,}",
    r"AQVN[\w-]{30,}",
    r"lsv2_[\w]{30,}",
    # models and data
    r"hf_[A-Za-z0-9]{20,}",
    r"api_org_[A-Za-z0-9]{20,}",
    r"sk-(?=[\w-]*\d)[\w-]{20,}",
    r"gsk_[A-Za-z0-9]{30,}",
    r"nvapi-[\w-]{30,}",
    r"r8_[A-Za-z0-9]{30,}",
    r"pplx-[A-Za-z0-9]{30,}",
    r"xai-[A-Za-z0-9]{30,}",
    r"fw_[A-Za-z0-9]{20,}",
    r"wandb_v\d_\w{20,}",
    r"tgp_v1_[\w-]{30,}",
    r"rpa_[A-Z0-9]{30,}",
    r"pnu_\w{30,}",
    r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    r"esecret_\w{20,}",
    r"jina_\w{30,}",
    r"pcsk_\w{20,}",
    r"fc-[a-fA-F0-9]{32}",
    r"tvly-[\w-]{20,}",
    r"secret_[A-Za-z0-9]{40,}",
    # talk, money, post
    r"xox[a-z]{1,2}[-.][\w.-]{8,}",
    r"xapp-\d-[\w-]{16,}",
    r"hooks\.slack\.com/[\w/]{16,}",
    r"discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}",
    r"webhook\.office\.com/webhookb2/[\w@/-]{20,}",
    r"\d{8,10}:AA[\w-]{30,}",
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",
    r"EAA[A-Z][A-Za-z0-9]{60,}",
    r"(?:sk|rk|pk)_(?:live|test|prod)_\w{10,}",
    r"whsec_[\w+/=]{20,}",
    r"(?:EAAA|sq0[a-z]{3}-)[\w-]{22,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}",
    r"key-[a-fA-F0-9]{32}",
    r"[a-fA-F0-9]{32}-us\d{1,2}",
    r"xkeysib-[\w-]{30,}",
    r"(?:AC|SK)[a-fA-F0-9]{32}",
    r"EZ[AT]K[A-Za-z0-9]{40,}",
    r"shp[a-z]{2}_[a-fA-F0-9]{32}",
    r"shippo_[a-z]+_[a-fA-F0-9]{30,}",
    r"FLW(?:SECK|PUBK)\w*-[\w-]{12,}",
    r"duffel_[a-z]+_[\w=-]{30,}",
    r"access-(?:sandbox|development|production)-[\w-]{30,}",
    # tools
    r"hv[sbr]\.[\w-]{20,}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{40,}",
    r"A3-[A-Z0-9]{6}-[A-Z0-9-]{20,}",
    r"ops_eyJ[\w+/=-]{30,}",
    r"gl(?:c|sa)_[\w+/=]{30,}",
    r"dt0[cs]0\d\.[\w.]{30,}",
    r"sntry[a-z]_[\w+/=]{30,}",
    r"NR(?:AK|JS|II|AA)-[A-Za-z0-9]{16,}",
    r"dp\.[a-z]{2,5}\.[\w.-]{30,}",
    r"PMAK-[\w-]{30,}",
    r"pul-[a-f0-9]{30,}",
    r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}",
    r"ntn_\w{30,}",
    r"fig[a-z]_[\w-]{30,}",
    r"ico-[A-Za-z0-9]{30,}",
    r"rdme_[a-z0-9]{60,}",
    r"sm_[a-z]at_[A-Za-z0-9]{16}",
    r"API-[A-Z0-9]{26}",
    r"fio-u-[\w=-]{40,}",
    r"s-s4t2[a-z]{2}-[a-f0-9]{40,}",
    r"\w{6}_\w{29}_mmk",
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
    r"p8e-[a-z0-9]{32}",
    r"[ps]at\.[\w-]{22}\.\w{24}\.\w{20}",
    r"aio_[A-Za-z0-9]{24,}",
    r"PRIVATE-TOKEN-[\w-]{16,}",
    r"tfp_[\w-]{30,}",
    r"bedrock-api-key-[\w=]+",
    # of no maker: JSON Web Tokens and other JSON in base64, PASETO, the hashes of passwords
    r"eyJ[\w+/=-]{12,}(?:\.[\w+/=-]*){0,4}",
    r"v[1-4]\.(?:local|public)\.[\w-]{20,}",
    r"\$(?:2[abxy]|argon2id?|[156y])\$[\w./$=,+-]{16,}",
)


@functools.cache
def _prefixed() -> re.Pattern[str]:
    """Compiled at first use: most ranks never mask anything."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})")


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
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})\\?[\"']?\]?\s{0,3}(?::=|=>|[=:])\s{0,3}"
)
_OPTION = re.compile(r"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]{0,80})\s{1,3}(?=[^\s-])")
_ELEMENT = re.compile(r"<(?P<name>[A-Za-z][\w:.-]{0,80})>(?=[^<\s])")
_MEMBER = re.compile(  # {"name": "DB_PASSWORD", "value": "x"}
    r"\b(?:name|key)\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"'](?P<name>[\w.-]{1,80})\\?[\"']"
    r"\s{0,3},?\s{0,3}"
    r"\\?[\"']?value\\?[\"']?\s{0,3}[:=]\s{0,3}",
    re.I,
)
_QUERY = re.compile(r"(?<=[?&;#])(?P<name>[A-Za-z_][\w.-]{0,80})=(?=[^\s&])")
_QUERY_VALUE = re.compile(r"[^\s&#\"'<>]*")
_QUERY_WORDS = _WEAK_WORDS | _LOOSE_WORDS | {"CREDENTIAL"}
_NETRC = re.compile(r"(\blogin\s+\S{1,80}\s+password\s+)\S+")
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
    text = _NETRC.sub(rf"\1{MASK}", text)
    text = _replaced(text, _MEMBER, _named_value)
    text = _replaced(text, _QUERY, _query_value)
    text = _replaced(text, _NAMED, _named_value)
    text = _replaced(text, _OPTION, _option_value)
    text = _replaced(text, _ELEMENT, _element_value)
    text = _replaced(text, _ADDRESS, _user_of_address)
    if "@" in text:
        text = re.sub(r"\S+", lambda match: _without_password(match[0]), text)
    return _LONG.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


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
    text: str, match: re.Match[str], is_secret: Callable[[str, str], bool]
) -> tuple[int, int] | None:
    begin = text[match.end() : match.end() + _JUDGED]
    start, end = _value_at(begin, 0)
    if start < end and is_secret(match["name"], begin[start:end]):
        return _value_at(text, match.end())
    return None


def _query_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    end = _QUERY_VALUE.match(text, match.end()).end()  # type: ignore[union-attr]
    value, name = text[match.end() : end], match["name"]
    if value.lower() in _FLAGS or _NUMBER.fullmatch(value):
        return None
    secret = names_secret(name) or not name_words(name).isdisjoint(_QUERY_WORDS)
    return (match.end(), end) if secret and len(value) > 3 else None


def _option_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    return _judged(text, match, is_secret_option)


def _element_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    end = text.find("<", match.end())
    end = len(text) if end < 0 else end
    value = text[match.end() : end]
    return (match.end(), end) if is_secret_setting(match["name"], value) else None


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


def _without_password(token: str) -> str:
    """Masks ``user:password@host``; not ``10.0.0.1:80,b@c``, ``gpu:0@n1``, ``x:1@sha256:...``."""
    at = token.rfind("@")
    host = token[at + 1 :]
    if at < 0 or not (host[:1].isalnum() or host[:1] == "[") or host.startswith("sha256:"):
        return token
    for user in _USER.finditer(token, 0, at):
        if not (token.startswith("//", user.end()) or _PORT.match(token, user.end(), at + 1)):
            return f"{token[: user.start()]}{MASK}{token[at:]}"
    return token


_VOWELS = re.compile(r"[a-z]{3,}")
_LEAST_CHANGES, _MOST_WORDS = 0.4, 0.35


def _is_random(run: str) -> bool:
    """Whether capitals, small letters and digits are mixed as no name and no path has them.

    Of random base64 three neighbours in five are of different classes. Hexadecimal hashes have one
    kind of letter and stay.
    """
    if not (re.search("[a-z]", run) and re.search("[A-Z]", run) and re.search(r"\d", run)):
        return False
    tokens = [token for token in _VOWELS.findall(run) if re.search("[aeiou]", token)]
    return _class_changes(run) >= _LEAST_CHANGES * (len(run) - 1) and sum(
        map(len, tokens)
    ) < _MOST_WORDS * len(run)


# Variables that change how a collective runs. Everything else stays private.
_PREFIXES = (
    *(*BACKEND_PREFIXES, "MPIR_", "MPICH_"),
    *("ZE_", "NEO_", "SYCL_", "ONEAPI_", "HSA_", "HIP_", "ROCR_", "TORCH_", "TORCHELASTIC_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "PBS_", "PALS_", "PMI_", "PMIX_", "SLURM_", "OMPI_"),
    *("CUDA_CACHE_", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "LD_PRELOAD"),
    *("MASTER_ADDR", "MASTER_PORT", "LSB_", "HYDRA_", "HYDI_"),
)
# Of variables more is a secret than of what people name themselves.
_SECRET = re.compile(r"KEY|PASS|AUTH|SESSION")
_SECRET_WORDS = {"PIN", "SIG", "PAT", "SALT", "CERT"}
_FREE_TEXT = {"COMMENT", "CMD", "COMMAND", "ARGV"}
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


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the allow-list, sorted by name; what is secret masked."""
    return {
        name: masked_value(name, value)
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES)
    }


def masked_value(name: str, value: str) -> str:
    """The value of an environment variable as it may be kept and shown."""
    return MASK if value and is_secret(name) else masked(value)


def masked_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """None, a variable that is taken away, stays."""
    return {k: v if v is None else masked_value(k, v) for k, v in variables.items()}


def masked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a file may keep them."""
    return {k: MASK if is_secret_setting(k, v) else masked(v) for k, v in labels.items()}


def masked_words(tokens: Sequence[str]) -> list[str]:
    """A command line as a file may keep it: ``--api-token x``, ``NAME_TOKEN=x``, ``user:pass@``."""
    shown = [masked(token) for token in tokens]
    for index, (option, value) in enumerate(pairwise(tokens), 1):
        if option.startswith("-") and "=" not in option and is_secret_option(option, value):
            shown[index] = MASK
    return shown
