from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.plan import Requires
from onnx2wgsl.runtime.device import adapter_info, missing, request_adapter
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans

X = np.arange(6, dtype=np.float32).reshape(2, 3)

HALF = dataclasses.replace(
    plans.kernel("half", plans.ADD.declarations, "b2[i] = f32(f16(b0[i]) + f16(b1[i]));"), wgsl_enables=("f16",)
)
SUBGROUP = dataclasses.replace(
    plans.kernel("subgroup", plans.ADD.declarations, "b2[i] = subgroupAdd(b0[i]) + b1[i];"),
    wgsl_enables=("subgroups",),
)


@pytest.mark.parametrize(("kernel", "feature"), [(HALF, "shader-f16"), (SUBGROUP, "subgroups")])
def test_a_variant_is_taken_where_the_adapter_has_its_feature(kernel, feature):
    has = feature in adapter_info(request_adapter()).features
    plan = plans.add_plan((kernel, plans.ADD), requires=Requires(features=(feature,)))
    with Session(Artifact.create(plan)) as session:
        assert session.variants["add_0"].kernel == (kernel.id if has else "add")
        assert len(session.device.features) == has
        np.testing.assert_array_equal(session.run({"x": X, "y": X})["sum"], X * 2)


def test_a_device_without_the_feature_takes_the_baseline():
    plan = plans.add_plan((HALF, plans.ADD), requires=Requires(features=("shader-f16",)))
    with Session(Artifact.create(plans.add_plan())) as plain:
        assert Session(Artifact.create(plan), device=plain.device).variants["add_0"].kernel == "add"


def test_a_variant_may_raise_a_limit():
    wide = plans.kernel("wide", plans.ADD.declarations, "b2[i] = b0[i] + b1[i];")
    wide = dataclasses.replace(
        wide, wgsl=wide.wgsl.replace("@workgroup_size(1)", "@workgroup_size(512)"), workgroup_size=(512, 1, 1)
    )
    limits = {"maxComputeInvocationsPerWorkgroup": 512, "maxComputeWorkgroupSizeX": 512}
    has = not missing(Requires(limits=limits), (), adapter_info(request_adapter()).limits)
    plan = plans.add_plan((wide, plans.ADD), requires=Requires(limits=limits))
    with Session(Artifact.create(plan)) as session:
        assert session.variants["add_0"].kernel == ("wide" if has else "add")
        np.testing.assert_array_equal(session.run({"x": X, "y": X})["sum"], X * 2)


def test_what_is_missing():
    requires = Requires(
        ("subgroups",),
        {"maxBufferSize": 8, "minStorageBufferOffsetAlignment": 64, "maxFoo": 1},
        ("packed_4x8_integer_dot_product", "chromium_experimental"),
        ("f16:f32:16x16x16",),
    )
    assert missing(requires, ("subgroups",), {"maxBufferSize": 8, "minStorageBufferOffsetAlignment": 256}) == [
        "minStorageBufferOffsetAlignment 64 (it has 256)",
        "maxFoo 1 (it has none)",
        "the WGSL language feature chromium_experimental",
        "the subgroup matrix f16:f32:16x16x16",
    ]
