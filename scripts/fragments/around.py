"""What the fragments of Python in the guides take for granted."""

import asyncio as asyncio
import pathlib
from dataclasses import dataclass as dataclass
from typing import Annotated as Annotated
from typing import Any

import broca as broca
from pydantic import BaseModel as BaseModel
from pydantic import Field as Field

ANY: Any
"""Stands where a guide leaves something out: …"""

url: str
key: str
session_id: str
saved: broca.SavedSession
stored_cursor: str
path: pathlib.Path
client: broca.AsyncClient
session: broca.AsyncSession
turn: broca.AsyncTurn
read_file: broca.Tool
pay: broca.Tool
bank: Any
store: Any
