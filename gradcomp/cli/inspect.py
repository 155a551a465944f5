"""``gradcomp inspect``: the header of a frame."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from gradcomp.cli import show
from gradcomp.cli.options import JsonOption
from gradcomp.codec import frame as frames
from gradcomp.errors import WireError

__all__ = ["inspect"]

_CRC_BYTES = 4
_HEADER_BYTES = 24


def inspect(
    frame: Annotated[
        typer.FileBinaryRead, typer.Argument(metavar="FRAME", help="A file; - for standard input.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Show the header of a frame and check its CRC."""
    try:
        data = frame.read(_HEADER_BYTES)
        # At most 4 GiB, and one byte more to notice that something follows the frame.
        data += frame.read(max(0, frames.frame_size(data) - len(data)) + 1)
        info = frames.inspect(data)
    except WireError as error:
        raise WireError(f"{frame.name}: {error}") from error
    if as_json:
        show.output_json(asdict(info))
    else:
        crc = {None: "none", True: "matches", False: "DOES NOT MATCH: the frame is damaged"}
        table = show.table("field", "value")
        table.add_row("version", str(info.version))
        table.add_row("flags", f"{info.flags:#04x}")
        table.add_row("codec", f"{info.codec_id} ({info.codec_name or _unknown(info.codec_id)})")
        table.add_row("spec hash", f"{info.spec_hash:#010x}")
        table.add_row("elements", f"{info.numel:,}")
        table.add_row("stream", "none" if info.stream is None else f"{info.stream:#018x}")
        table.add_row("payload", f"{info.payload_bytes:,} bytes")
        table.add_row("frame", f"{info.total_bytes:,} bytes")
        table.add_row("CRC", crc[info.crc_ok])
        trailer = 0 if info.crc_ok is None else _CRC_BYTES
        header = data[: info.total_bytes - info.payload_bytes - trailer]
        show.output(f"{frame.name}:", "", table, "", "header:", _hexdump(header))
    if info.crc_ok is False:
        raise typer.Exit(1)


def _hexdump(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"  {start:04x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)


def _unknown(codec_id: int) -> str:
    return "unknown" if codec_id < 0x8000 else "of a plug-in that is not installed here"
