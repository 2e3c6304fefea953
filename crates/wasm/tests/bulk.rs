//! Bulk memory in loaded kernels: what it does, and that its budget is that of a loop.

#[path = "../../remora/tests/support/mod.rs"]
mod support;

use remora::kernel::{CallFailure, CallStatus, Deployment, KernelClient};
use remora_wasm::{LoadError, Module};
use support::{End, pair};

const OPCODE: u64 = 0x1000;
/// Bytes of the memory of [`kernel`].
const MEMORY: u32 = 1 << 16;
/// The bytes of its data segment.
const SEGMENT: &[u8] = b"what a passive segment holds: more than one piece would be 256 bytes";

fn load(text: &str) -> Result<Module, LoadError> {
    Module::load(&wat::parse_str(text).unwrap())
}

/// A kernel that fills its memory with numbers, carries out `bulk` with the three numbers that are
/// its parameters, and answers with its memory.
fn kernel(begin: &str, bulk: &str) -> Module {
    let segment = SEGMENT.repeat(20).escape_ascii().to_string();
    let text = format!(
        r#"(module
            (import "remora" "params" (func $params (param i32 i32) (result i32)))
            (import "remora" "output" (func $output (param i32 i32) (result i32)))
            (import "remora" "yield_now" (func $yield_now (result i32)))
            (memory (export "memory") 1)
            (data $segment "{segment}")
            (func (export "kernel") (result i32) (local $i i32) {begin}
                (drop (call $params (i32.const 0) (i32.const 12)))
                (i32.load (i32.const 0)) (i32.load (i32.const 4)) (i32.load (i32.const 8))
                (loop $fill
                    (i32.store16 (local.get $i) (i32.mul (local.get $i) (i32.const 40503)))
                    (local.set $i (i32.add (local.get $i) (i32.const 2)))
                    (br_if $fill (i32.lt_u (local.get $i) (i32.const {MEMORY}))))
                {bulk}
                (call $output (i32.const 0) (i32.const {MEMORY}))))"#
    );
    load(&text).unwrap()
}

/// The memory before the bulk instruction.
fn numbers() -> Vec<u8> {
    (0..MEMORY).step_by(2).flat_map(|i| (i.wrapping_mul(40503) as u16).to_le_bytes()).collect()
}

fn call(client: &mut KernelClient, params: &[u32]) -> Result<Vec<u8>, CallStatus> {
    let (mut out, params) = (Vec::new(), params.iter().flat_map(|word| word.to_le_bytes()));
    match client.call(OPCODE, &params.collect::<Vec<u8>>(), &mut out) {
        Ok(_) => Ok(out),
        Err(CallFailure::Status(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

/// What the standard says that `memory.copy`, `memory.fill` and `memory.init` do; `None` for a
/// trap.
fn expected(bulk: &str, [to, from, len]: [u32; 3]) -> Option<Vec<u8>> {
    let (mut memory, segment) = (numbers(), SEGMENT.repeat(20));
    let range = |at: u32| at as usize..(at as usize + len as usize);
    memory.get(range(to))?;
    match bulk {
        "(memory.copy)" => {
            let source = memory.get(range(from))?.to_vec();
            memory[range(to)].copy_from_slice(&source);
        }
        "(memory.fill)" => memory[range(to)].fill(from as u8),
        _ => memory[range(to)].copy_from_slice(segment.get(range(from))?),
    }
    Some(memory)
}

#[test]
fn bulk_memory_does_what_the_standard_says() {
    let lens = [0, 1, 63, 255, 256, 257, 511, 512, 513, 1024, 1300, 30_000];
    let places = [0, 1, 100, 256, 300, 1024, MEMORY - 1300, MEMORY - 256, MEMORY - 1, MEMORY];
    let mut cases = Vec::new();
    for len in lens {
        for to in places {
            cases.extend(places.map(|from| [to, from, len]));
        }
    }
    cases.extend([[0, 0, MEMORY], [0, 1, MEMORY], [1, 0, MEMORY], [0, 0, MEMORY + 1]]);
    cases.extend([[0, 0, u32::MAX], [u32::MAX, 0, 2], [u32::MAX - 500, 0, 600]]);
    cases.extend([[0, u32::MAX - 500, 600], [MEMORY + 1, 0, 0], [0, MEMORY + 1, 0]]);
    let (_a, b, mut client) = pair();
    // In a trial, and in an invocation that was suspended before.
    for begin in ["", "(drop (call $yield_now))"] {
        for bulk in ["(memory.copy)", "(memory.fill)", "(memory.init $segment)"] {
            deploy(&b, &kernel(begin, bulk), u64::MAX);
            for case in &cases {
                let expected = expected(bulk, *case).ok_or(CallStatus::TRAP);
                assert!(call(&mut client, case) == expected, "{begin} {bulk} {case:?}");
            }
            b.device.undeploy(OPCODE).unwrap();
        }
    }
}

fn deploy(end: &End, module: &Module, budget: u64) {
    let deployment = Deployment::new("bulk", []).budget(budget);
    end.device.load_kernel(OPCODE, deployment, module).unwrap();
}

#[test]
fn a_dropped_segment_is_empty() {
    let (_a, b, mut client) = pair();
    let bulk = "(data.drop $segment) (memory.init $segment)";
    deploy(&b, &kernel("", bulk), 1 << 20);
    assert_eq!(call(&mut client, &[0, 0, 1]), Err(CallStatus::TRAP));
    assert_eq!(call(&mut client, &[0, 0, 1000]), Err(CallStatus::TRAP));
    assert!(call(&mut client, &[7, 0, 0]) == Ok(numbers()));
}

/// The least budget with which a kernel ends well, in steps.
fn budget(body: &str) -> u64 {
    let (_a, b, mut client) = pair();
    let module = load(&format!(
        r#"(module (memory 32) (data $segment "{}")
            (table 1 funcref) (elem $elements declare func 0)
            (func (export "kernel") (result i32)
                (i32.const 0) (i32.const 0) {body} (i32.const 0)))"#,
        "x".repeat(1 << 16),
    ));
    let module = module.unwrap();
    let mut ends = |budget: u64| {
        deploy(&b, &module, budget);
        let end = call(&mut client, &[]).map(drop);
        b.device.undeploy(OPCODE).unwrap();
        assert!(matches!(end, Ok(()) | Err(CallStatus::BUDGET)), "{end:?}");
        end.is_ok()
    };
    let (mut low, mut high) = (0, 1 << 20);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if ends(middle) { high = middle } else { low = middle }
    }
    high
}

#[test]
fn bulk_memory_is_charged_by_its_length() {
    let pieces = |len: u64| len / 256;
    for (bulk, piece) in [("memory.copy", 19), ("memory.fill", 15), ("memory.init $segment", 19)] {
        for len in [1 << 16, 2 << 20] {
            if len > 1 << 16 && bulk.starts_with("memory.init") {
                continue;
            }
            let steps = budget(&format!("(i32.const {len}) ({bulk})"));
            assert_eq!(steps, pieces(len) * piece / 64, "{bulk} {len}");
        }
    }
    assert_eq!(budget("(i32.const 256) (memory.fill)"), 1);
}

/// What calls the host takes longer than an instruction, and the count is looked at before each.
#[test]
fn instructions_that_call_the_host_cost_more_than_one() {
    const TIMES: usize = 100;
    for call in [
        "(drop (memory.grow (i32.const 0)))",
        "(drop (table.grow 0 (ref.null func) (i32.const 0)))",
        "(data.drop $segment)",
        "(elem.drop $elements)",
        "(drop (ref.func 0))",
    ] {
        let steps = budget(&format!("drop drop {}", call.repeat(TIMES)));
        let (least, most) = (TIMES * 500 / 64, TIMES * 512 / 64);
        assert!((least..=most).contains(&(steps as usize)), "{call}: {steps}");
    }
}

#[test]
fn bulk_memory_without_end_ends_with_its_budget() {
    let (_a, b, mut client) = pair();
    for bulk in ["memory.copy", "memory.fill"] {
        let module = load(&format!(
            r#"(module (memory 32)
                (func (export "kernel") (result i32)
                    (loop $again
                        ({bulk} (i32.const 1) (i32.const 0) (i32.const 0x1F_FFFF))
                        (br $again))
                    (i32.const 0)))"#
        ));
        deploy(&b, &module.unwrap(), 100_000);
        assert_eq!(call(&mut client, &[]), Err(CallStatus::BUDGET));
        b.device.undeploy(OPCODE).unwrap();
    }
}

#[test]
fn what_compilers_emit_by_default_is_offered_and_the_rest_is_refused_by_name() {
    let with = |body: &str| {
        load(&format!(
            r#"(module (memory 1) (table $table 4 funcref) (elem $elements func 0) (data $d "x")
                (func (export "kernel") (result i32) {body} (i32.const 0)))"#
        ))
    };
    for offered in [
        "(drop (i32.extend8_s (i32.const 200)))",
        "(drop (i64.trunc_sat_f64_u (f64.const 1e300)))",
        "(memory.fill (i32.const 0) (i32.const 0) (i32.const 9))",
        "(data.drop $d) (elem.drop $elements)",
    ] {
        assert!(with(offered).is_ok(), "{offered}");
    }
    for name in ["table.copy", "table.fill", "table.init $elements"] {
        let from = if name == "table.fill" { "(ref.null func)" } else { "(i32.const 0)" };
        let error = with(&format!("({name} (i32.const 0) {from} (i32.const 1))")).unwrap_err();
        let name = name.split(' ').next().unwrap();
        assert_eq!(error, LoadError::Instruction { name, function: 0 });
    }
}
