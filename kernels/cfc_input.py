"""The CfC cell's input row: [encoding, private state, h_prev, 1, 0, 0, 0].

The constant 1 meets the bias column of the backbone's weight; three zeros keep rows a multiple of 16 bytes.
"""

from __future__ import annotations

from typing import Any

from kernels.spec import REAL, Arg, Kernel, warp_a_row


def reference(enc: Any, private: Any, h_prev: Any, cat: Any) -> None:
    d, p, h = enc.shape[1], private.shape[1], h_prev.shape[1]
    cat[:, :d] = enc
    cat[:, d : d + p] = private
    cat[:, d + p : d + p + h] = h_prev
    cat[:, d + p + h] = 1
    cat[:, d + p + h + 1 :] = 0


KERNEL = Kernel(
    "cfc_input",
    args=(
        Arg("enc", REAL, "in", "R,D"),
        Arg("private", REAL, "in", "R,P"),
        Arg("h_prev", REAL, "in", "R,H"),
        Arg("cat", REAL, "out", "R,X", "X = D + P + H + 4"),
    ),
    reference=reference,
    launcher=warp_a_row("R"),
    tolerance=(0.0, 0.0, "a copy"),
)
