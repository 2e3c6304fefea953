//! Any bytes as a module for the card; a valid module runs as a kernel.

use remora_nic::Counters;
use remora_nic::kernel::{Header, Notify};
use remora_nic::queue::RemoteAddress;
use remora_wasm::{Module, ModuleLimits};

use crate::arena::{Arena, OPEN};
use crate::seeds::Seed;

const OPCODE: u64 = 1;

/// The input is a module.
///
/// # Panics
/// If the card panics, accesses memory that was not granted, or loses a request.
pub fn module(data: &[u8]) {
    module_counters(data);
}

/// Runs [`module`], and returns the card's counters.
pub fn module_counters(data: &[u8]) -> Counters {
    let mut arena = Arena::new();
    let limits = ModuleLimits { memory: 1 << 20, table: 100, instances: 2 };
    if let Ok(module) = Module::load_with(data, limits) {
        arena.deploy_module(OPCODE, &module);
        // Twice, since the first call leaves state behind: with parameters that look like
        // addresses, and without.
        for params in [[OPEN, OPEN + 64, 0], [0, 1, 2]] {
            arena.call(OPCODE, &call(params.map(u64::to_le_bytes).as_flattened(), &[]));
            arena.call(OPCODE, &call(&[7], &[b'\n', 7, b'\n']));
            // Every kernel that still runs ends with its budget.
            for _ in 0..256 {
                arena.transmit();
            }
            arena.pass_by(b"what passes");
        }
    }
    arena.flush()
}

fn call(params: &[u8], payload: &[u8]) -> Vec<u8> {
    let (notify, to) = (Notify::Immediate, RemoteAddress { addr: 0x1000, rkey: 5 });
    let params_len = params.len() as u16;
    let header = Header { notify, local: false, params_len, to, max_len: 100, cookie: 3 };
    [&header.to_bytes()[..], params, payload].concat()
}

/// The examples, and small modules with one body each.
pub fn modules() -> Vec<Seed> {
    let seed = |name: &str, data: &[u8]| Seed { name: name.into(), data: data.into() };
    vec![
        seed("get", include_bytes!("../../guest/built/get.wasm")),
        seed("sum", include_bytes!("../../guest/built/sum.wasm")),
        seed("tail", include_bytes!("../../guest/built/tail.wasm")),
        seed("lines", include_bytes!("../../guest/built/lines.wasm")),
        // A tap that replaces the payload: (i32.const 1)
        seed("tap", &tap(&[0x41, 1])),
        // (loop (br 0)) (i32.const 0)
        seed("endless_tap", &tap(&[0x03, 0x40, 0x0C, 0, 0x0B, 0x41, 0])),
        // (i32.const 0)
        seed("empty", &around(&[0x41, 0])),
        // (unreachable)
        seed("trap", &around(&[0x00])),
        // (loop (br 0)) (i32.const 0)
        seed("endless", &around(&[0x03, 0x40, 0x0C, 0, 0x0B, 0x41, 0])),
        // (memory.grow (i32.const 63))
        seed("grow", &around(&[0x41, 0x3F, 0x40, 0])),
        // (call 0)
        seed("recursion", &around(&[0x10, 0])),
        // (memory.fill (i32.const 9) (i32.const 5) (i32.const 60000)) (i32.const 0)
        seed("fill", &around(&[0x41, 9, 0x41, 5, 0x41, 0xE0, 0xD4, 3, 0xFC, 11, 0, 0x41, 0])),
        // (memory.copy (i32.const 1) (i32.const 0) (i32.const 60000)) (i32.const 0)
        seed("copy", &around(&[0x41, 1, 0x41, 0, 0x41, 0xE0, 0xD4, 3, 0xFC, 10, 0, 0, 0x41, 0])),
        // (memory.copy (i32.const 0) (i32.const -1) (i32.const 300)) (i32.const 0)
        seed("wild_copy", &around(&[0x41, 0, 0x41, 0x7F, 0x41, 0xAC, 2, 0xFC, 10, 0, 0, 0x41, 0])),
        // (loop (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br 0)) (i32.const 0)
        seed(
            "endless_fill",
            &around(&[
                0x03, 0x40, 0x41, 0, 0x41, 0, 0x41, 0x80, 0x80, 4, 0xFC, 11, 0, 0x0C, 0, 0x0B,
                0x41, 0,
            ]),
        ),
        // (i32.load (i32.const -4))
        seed("wild", &around(&[0x41, 0x7C, 0x28, 2, 0])),
    ]
}

/// A module with a page of memory and a kernel with this body.
fn around(body: &[u8]) -> Vec<u8> {
    exporting(b"\x07\x0A\x01\x06kernel\0\0", body)
}

/// The same module; its kernel is also its tap.
fn tap(body: &[u8]) -> Vec<u8> {
    exporting(b"\x07\x10\x02\x06kernel\0\0\x03tap\0\0", body)
}

fn exporting(names: &[u8], body: &[u8]) -> Vec<u8> {
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    // The function type, the function, the memory, and the name of the export follow.
    module.extend_from_slice(&[1, 5, 1, 0x60, 0, 1, 0x7F, 3, 2, 1, 0, 5, 3, 1, 0, 1]);
    module.extend_from_slice(names);
    let len = body.len() as u8 + 2;
    module.extend_from_slice(&[10, len + 2, 1, len, 0]);
    module.extend_from_slice(body);
    module.push(0x0B);
    module
}
