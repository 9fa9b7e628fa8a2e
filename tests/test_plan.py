from __future__ import annotations

import dataclasses
import json
from typing import Any

import jsonschema
import pytest

from onnx2wgsl.errors import ArtifactError
from onnx2wgsl.ir import plan as ir
from onnx2wgsl.ir.plan_json import parse_plan, plan_schema, print_plan
from onnx2wgsl.ir.plan_verify import uniform_size, verify_plan
from tests.runtime import plans

WHERE = "entry main, step add_0, kernel add: "


def texts(plan: ir.Plan) -> Any:
    return {f"kernels/{kernel.id}.wgsl": kernel.wgsl for kernel in plan.kernels}.__getitem__


def full_plan() -> ir.Plan:
    """A plan in which every class and every optional field occurs."""
    plan = plans.chain_plan()
    entry = plan.entries[0]
    growing = plans.port("cache", "f32", 2, 4, buffer="cache")
    entry = dataclasses.replace(
        entry,
        buffers=(*entry.buffers, ir.Buffer("cache", 32, "state")),
        inputs=(*entry.inputs, growing),
        outputs=(
            *entry.outputs,
            dataclasses.replace(growing, name="grown", lengths=(ir.Length(1, "a", 0),)),
            plans.port("none", "i64", 0),
        ),
        states=(ir.State("cache", "grown", axis=1, growth=1, capacity=4),),
        params=(ir.ParamField("cache", 260, "u32", "state"),),
        bound=("rate",),
        requires=ir.Requires(("shader-f16",), {"maxBufferSize": 1 << 30}, ("pointer_composite_access",), ("a",)),
        baseline_requires=ir.Requires(("shader-f16",)),
    )
    passes = (ir.PassRecord("fuse", {"limit": 4}, {"fused": [1, 2.5, None, "x"]}),)
    shards = (ir.Shard("weights-00001-of-00001.bin", 264, ("0" * 64,)),)
    return dataclasses.replace(plan, entries=(entry,), passes=passes, shards=shards, golden_sha256="1" * 64)


def with_step(**changes: Any) -> ir.Plan:
    """The plan of an addition with its step changed, and signed anew unless the signature is what changes."""
    plan = plans.add_plan()
    entry = plan.entries[0]
    step = dataclasses.replace(entry.steps[0], **changes)
    if "signature" not in changes:
        step = dataclasses.replace(step, signature=ir.layout_signature(plans.ADD.declarations, step.bindings))
    return dataclasses.replace(plan, entries=(dataclasses.replace(entry, steps=(step,)),))


def with_binding(index: int, **changes: Any) -> ir.Plan:
    bindings = list(plans.add_plan().entries[0].steps[0].bindings)
    bindings[index] = dataclasses.replace(bindings[index], **changes)
    return with_step(bindings=tuple(bindings))


def with_kernel(**changes: Any) -> ir.Plan:
    return dataclasses.replace(plans.add_plan(), kernels=(dataclasses.replace(plans.ADD, **changes),))


def refusal(plan: ir.Plan) -> str:
    with pytest.raises(ArtifactError) as error:
        verify_plan(plan)
    return str(error.value)


@pytest.mark.parametrize("plan", [plans.add_plan(), plans.chain_plan(), full_plan()])
def test_json_round_trips(plan):
    text = print_plan(plan)
    assert parse_plan(text, texts(plan)) == plan
    assert print_plan(parse_plan(text, texts(plan))) == text


def test_the_full_plan_is_consistent():
    verify_plan(full_plan())


def test_a_reader_understands_a_step():
    document = json.loads(print_plan(plans.add_plan()))
    step = document["entries"][0]["steps"][0]
    assert (step["name"], step["nodes"], step["variants"]) == (
        "add_0",
        ["/add_0"],
        [{"kernel": "add", "grid": [6, 1, 1]}],
    )
    assert [binding["tensors"] for binding in step["bindings"]] == [["x"], ["y"], ["sum"]]
    assert max(map(len, print_plan(plans.add_plan()).decode().splitlines())) <= 200


def test_hostile_names_stay_ascii():
    plan = with_step(name="\x1b[31m\n\ud800é")
    text = print_plan(plan)
    assert text.isascii()
    assert b"\x1b" not in text
    assert parse_plan(text, texts(plan)) == plan


def test_unknown_fields_are_ignored():
    plan = plans.add_plan()
    document = json.loads(print_plan(plan))
    document["format_version"] = "1.7"
    document["later"] = document["entries"][0]["later"] = document["entries"][0]["steps"][0]["later"] = {"a": 1}
    assert parse_plan(json.dumps(document).encode(), texts(plan)) == dataclasses.replace(plan, format_version="1.7")


def test_numbers_with_a_point_are_integers():
    plan = plans.add_plan()
    text = print_plan(plan).replace(b'"size": 24', b'"size": 24.0')
    assert print_plan(parse_plan(text, texts(plan))) == print_plan(plan)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{}", "plan.json has no format_version, so this is no onnx2wgsl artifact."),
        (b"[1]", "plan.json has no format_version, so this is no onnx2wgsl artifact."),
        (
            b'{"format_version": "2.0"}',
            (
                "This artifact has format version 2.0, but this runtime reads versions 1.x. "
                "Compile the model again, or use the version of onnx2wgsl that made it."
            ),
        ),
        (b'{"format_version": "1.0"}', "plan.json is malformed at $: 'producer' is a required property"),
    ],
)
def test_other_documents_are_refused(text, message):
    with pytest.raises(ArtifactError) as error:
        parse_plan(text, {}.__getitem__)
    assert str(error.value) == message


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ArtifactError, match=r"^plan\.json is not JSON: "):
        parse_plan(text, {}.__getitem__)


def test_a_malformed_field_is_located():
    plan = plans.add_plan()
    text = print_plan(plan).replace(b'"slot": 0', b'"slot": "0"', 1)
    with pytest.raises(ArtifactError) as error:
        parse_plan(text, texts(plan))
    assert str(error.value) == (
        "plan.json is malformed at $.kernels[0].declarations[0].slot: '0' is not of type 'integer'"
    )


def test_the_schema_is_one_and_names_every_field():
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    classes = {"param": ir.ParamField, "pass": ir.PassRecord}
    for name, definition in schema["$defs"].items():
        known = classes.get(name) or getattr(ir, name.title())
        expected = {field.name for field in dataclasses.fields(known)} - {"wgsl"}
        assert set(definition["properties"]) - {"sha256"} == expected, name
    assert set(schema["properties"]) == {field.name for field in dataclasses.fields(ir.Plan)}


def test_declarations_round_trip():
    declarations = (
        plans.read(0, "vec4<f32>"),
        plans.write(3, "atomic<u32>"),
        plans.uniform(("step", "u32"), ("pos", "vec2<i32>")),
    )
    text = "// @group(0) @binding(9) var<uniform> u: /* not code */\n" + "\n".join(
        map(ir.print_declaration, declarations)
    )
    assert ir.parse_declarations(text) == declarations
    assert ir.print_declaration(declarations[2]) == (
        "struct Uniforms { step: u32, pos: vec2<i32>, }\n@group(0) @binding(16) var<uniform> u: Uniforms;"
    )


@pytest.mark.parametrize(
    "line",
    [
        "@group(1) @binding(0) var<storage, read> b0: array<f32>;",
        "@group(0) @binding(0) var<storage> b0: array<f32>;",
        "@group(0) @binding(0) var<storage, read> b1: array<f32>;",
        "@group(0) @binding(0) var<storage, read> b0: array<f32>; var<private> x: u32;",
        "@ binding(0) @group(0) var<storage, read> b0: array<f32>;",
        "var < storage > b0: array<f32>;",
        "struct Uniforms { a: u32 }",
    ],
)
def test_declarations_in_another_form_are_refused(line):
    with pytest.raises(ArtifactError) as error:
        ir.parse_declarations(line)
    assert str(error.value) == f"expected a declaration in the printer's fixed form, but got {line!r}"


def test_a_comment_cannot_hide_a_declaration():
    hidden = "// a comment\u2028@group(0) @binding(0) var<storage, read> b0: array<f32>;"
    assert ir.parse_declarations(hidden) == (plans.read(0),)
    with pytest.raises(ArtifactError, match="block comment"):
        ir.parse_declarations("/* */")


def test_signature_covers_the_layout_and_not_the_place():
    step = plans.chain_plan().entries[0].steps[1]
    declarations = plans.SCALE.declarations
    signature = ir.layout_signature(declarations, step.bindings)
    moved = [dataclasses.replace(binding, offset=0, buffer="q", tensors=()) for binding in step.bindings]
    assert ir.layout_signature(declarations, moved) == signature
    seen = {signature}
    for change in ({"slot": 7}, {"access": "read_write"}, {"size": 512}, {"kind": "uniform"}):
        seen.add(
            ir.layout_signature(declarations, [dataclasses.replace(step.bindings[0], **change), *step.bindings[1:]])
        )
    for fields in ((("bias", "f32"), ("factor", "f32")), (("factor", "f32"), ("bias", "u32"))):
        seen.add(ir.layout_signature([*declarations[:2], plans.uniform(*fields)], step.bindings))
    assert len(seen) == 7


def test_uniform_sizes():
    assert uniform_size([("a", "u32")]) == 4
    assert uniform_size([("a", "u32"), ("b", "vec3<f32>"), ("c", "f32")]) == 32
    assert uniform_size([("a", "vec2<f32>"), ("b", "f32")]) == 16


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (with_binding(0, slot=3), WHERE + "it binds slots [1, 2, 3], but add declares slots [0, 1, 2]."),
        (with_binding(0, slot=16), WHERE + "a tensor has slot 16, but tensors take slots 0 to 15."),
        (with_binding(0, slot=1), WHERE + "slot 1 is bound 2 times."),
        (with_binding(0, offset=128), WHERE + "slot 0 has offset 128, which is no multiple of 256."),
        (with_binding(0, size=22), WHERE + "slot 0 has size 22, which is no positive multiple of 4."),
        (with_binding(0, size=28), WHERE + "slot 0 ends at byte 28 of x, which has 24."),
        (with_binding(0, offset=256), WHERE + "slot 0 ends at byte 280 of x, which has 24."),
        (with_binding(0, buffer="q"), WHERE + "slot 0 binds the buffer q, which does not exist."),
        (with_binding(0, access="read_write"), WHERE + "slot 0 writes x, a buffer of kind input."),
        (with_binding(2, access="read"), WHERE + "slot 2 is bound as read, but add declares read_write."),
        (with_binding(0, buffer="sum"), WHERE + "slots 0 and 2 bind sum both read and read_write."),
        (with_binding(0, kind="uniform"), WHERE + "slot 0 has kind uniform with access read."),
        (
            with_step(variants=()),
            WHERE.replace("add:", "none:") + "the last variant must be the baseline, without requires and prefer.",
        ),
        (
            with_step(variants=(ir.Variant("add", (1, 1, 1), prefer={"adapter": "gpu"}),)),
            WHERE + "the last variant must be the baseline, without requires and prefer.",
        ),
        (
            with_step(variants=(ir.Variant("sub", (1, 1, 1)),)),
            "entry main, step add_0, kernel sub: there is no kernel sub.",
        ),
        (
            with_step(variants=(ir.Variant("add", (65536, 1, 1)),)),
            WHERE + "grid (65536, 1, 1) must have 1 to 65535 workgroups in each dimension.",
        ),
        (with_step(op="copy"), WHERE + "unknown operation copy."),
        (
            with_kernel(declarations=(*plans.ADD.declarations[:2], plans.write(2, "vec4<f32>"))),
            (
                "kernel add: its text declares slot 0 read array<f32>; slot 1 read array<f32>; slot 2 read_write "
                "array<f32>, but the plan says slot 0 read array<f32>; slot 1 read array<f32>; slot 2 read_write "
                "array<vec4<f32>>."
            ),
        ),
        (
            with_kernel(workgroup_size=(2, 1, 1)),
            "kernel add: its text has workgroup size (1, 1, 1), but the plan says (2, 1, 1).",
        ),
        (
            with_kernel(wgsl="enable f16;\n" + plans.ADD.wgsl),
            "kernel add: its text has an enable or requires line, which belongs into wgsl_enables.",
        ),
        (
            with_kernel(wgsl="/**/" + plans.ADD.wgsl),
            "kernel add: kernels have line comments only, but this one has a block comment.",
        ),
        (
            with_kernel(id="../add"),
            "kernel ../add: expected an id of letters, digits, '_' and '-', at most 100 of them.",
        ),
        (
            dataclasses.replace(plans.add_plan(), kernels=(plans.ADD, plans.ADD)),
            "kernel add: expected one of that name, but got 2.",
        ),
    ],
)  # fmt: skip
def test_inconsistent_plans_are_refused(plan, message):
    assert refusal(plan) == message


def test_a_wrong_signature_is_refused():
    right = plans.add_plan().entries[0].steps[0].signature
    assert refusal(with_step(signature="0" * 32)) == (
        WHERE + f"expected the layout signature {right}, but got {'0' * 32}."
    )


def test_writes_that_overlap_are_refused_and_disjoint_ones_are_not():
    kernel = plans.kernel("two", [plans.write(0), plans.write(1)], "b0[i] = b1[i];")
    for offset, fine in ((256, True), (0, False)):
        bindings = [plans.binding(0, "read_write", "a", 16), plans.binding(1, "read_write", "a", 16, offset)]
        entry = ir.Entry("main", (ir.Buffer("a", 512, "arena"),), (), (), (plans.step("two_0", [kernel], 4, bindings),))
        plan = plans.plan([kernel], entry)
        if fine:
            verify_plan(plan)
        else:
            assert refusal(plan) == "entry main, step two_0, kernel two: slots 0 and 1 overlap in a."


def test_more_storage_slots_than_the_limit_are_refused():
    kernel = plans.kernel("many", [plans.write(slot) for slot in range(9)], "b0[i] = b1[i];")
    bindings = [plans.binding(slot, "read_write", "a", 4, 256 * slot) for slot in range(9)]
    step = plans.step("many_0", [kernel], 4, bindings)
    entry = ir.Entry("main", (ir.Buffer("a", 4096, "arena"),), (), (), (step,))
    assert refusal(plans.plan([kernel], entry)) == (
        "entry main, step many_0, kernel many: it binds 9 storage slots, above maxStorageBuffersPerShaderStage, 8."
    )
    needs = ir.Requires(limits={"maxStorageBuffersPerShaderStage": 9})
    verify_plan(plans.plan([kernel], dataclasses.replace(entry, baseline_requires=needs)))


def test_ports_weights_and_uniforms_are_checked():
    plan = full_plan()
    entry = plan.entries[0]

    def of_entry(**changes: Any) -> str:
        return refusal(dataclasses.replace(plan, entries=(dataclasses.replace(entry, **changes),)))

    x, *others = entry.inputs
    assert of_entry(inputs=(dataclasses.replace(x, dtype="f31"), *others)) == "input x: unknown dtype f31."
    assert of_entry(inputs=(dataclasses.replace(x, shape=(32,)), *others)) == (
        "input x: expected 128 bytes for f32[32], but got 256."
    )
    assert of_entry(inputs=(dataclasses.replace(x, buffer="a"), *others)) == "input x: there is no input buffer a."
    assert of_entry(uniform_data=b"") == "entry main: expected one uniform buffer of the size of uniform_data."
    assert of_entry(states=(ir.State("cache", "z"),)) == "state cache: input and output differ in dtype or shape."
    assert of_entry(params=(ir.ParamField("x", 0, "f32"),)) == (
        "param x: there is no input of that name with one element."
    )
    weight = dataclasses.replace(plan.weights[0], offset=512)
    assert refusal(dataclasses.replace(plan, weights=(weight,))) == (
        "weight w: it ends behind the 512 bytes of its buffer."
    )
    assert refusal(dataclasses.replace(plan, shards=())) == "weight w: it ends behind the 0 bytes of all shards."
