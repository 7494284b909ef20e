"""The peers as policies, pure: what QAS is compared with. Importing this room registers them."""

from __future__ import annotations

from prism_ray.baselines.contextpilot import ContextPilot
from prism_ray.baselines.dfs_weight import DfsWeight
from prism_ray.baselines.fcfs import Fcfs, RefreshingFcfs
from prism_ray.baselines.front_alignment import FrontAlignment
from prism_ray.baselines.hrrn import Hrrn
from prism_ray.baselines.k_lpm import KLpm
from prism_ray.baselines.lpm import Lpm, LpmUncapped
from prism_ray.baselines.peek import Peek
from prism_ray.baselines.preble_groups import PrebleGroups

__all__ = [
    "ContextPilot",
    "DfsWeight",
    "Fcfs",
    "FrontAlignment",
    "Hrrn",
    "KLpm",
    "Lpm",
    "LpmUncapped",
    "Peek",
    "PrebleGroups",
    "RefreshingFcfs",
]
