//! Kernels loaded as WebAssembly, beside native ones: end to end, as a bare call, and many at once.

use std::hint::black_box;
use std::task::{self, Poll};
use std::time::Instant;

use anyhow::Result;
use remora::kernel::{CallStatus, Context, Deployment, Grant, Header, Program};
use remora_wasm::Module;

use super::super::figure::median_us;
use super::super::row::{Case, Run, Target};
use super::extent::Extent;
use super::lookups::{Structures, median_of, table_of};
use crate::draws::Draws;
use crate::ways::lookup::{Way, expect_found};
use crate::ways::{Client, loaded};

/// `(module (func (export "kernel") (result i32) (i32.const 0)))`
const EMPTY: &[u8] = &[
    0, b'a', b's', b'm', 1, 0, 0, 0, 1, 5, 1, 0x60, 0, 1, 0x7F, 3, 2, 1, 0, 7, 10, 1, 6, b'k',
    b'e', b'r', b'n', b'e', b'l', 0, 0, 10, 6, 1, 4, 0, 0x41, 0, 0x0B,
];
/// The op-codes of the empty kernels, on this side's own card.
const LOADED: u64 = 1;
const NATIVE: u64 = 2;
/// Bare calls for each call of another measurement.
const BARE: usize = 20;

/// A native function pointer as a kernel.
struct Pointer(fn() -> u32);

impl Program for Pointer {
    fn start(&mut self, _: Context) -> u32 {
        0
    }

    fn poll(&mut self, _: u32, _: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        Poll::Ready(match black_box(self.0)() {
            0 => Ok(()),
            _ => Err(CallStatus::TRAP),
        })
    }

    fn stop(&mut self, _: u32) {}
}

/// The rows of loaded kernels.
pub(super) fn cases<'a>(
    client: &'a Client,
    structures: &'a Structures,
    extent: Extent,
) -> Result<[Case<'a>; 3]> {
    let deployment = |name| Deployment::new(name, Vec::<Grant>::new());
    client.device.load_kernel(LOADED, deployment("empty, loaded"), &Module::load(EMPTY)?)?;
    let native = Box::new(Pointer(|| 0));
    client.device.deploy_program(NATIVE, deployment("empty, native"), native)?;
    let calls = extent.calls * 3;
    let one = move || get(client, structures, calls, 1);
    Ok([
        Case {
            name: "wasm_get",
            unit: "µs",
            peer: "get, built in",
            target: Target::AtMost(1.3),
            ours: one(),
            theirs: median_of(table_of(client, structures, 64, Way::Kernel, calls)),
        },
        Case {
            name: "wasm_call_ns",
            unit: "ns",
            peer: "a native function pointer",
            target: Target::AtMostMore(40.0),
            ours: bare(client, LOADED, calls * BARE),
            theirs: bare(client, NATIVE, calls * BARE),
        },
        Case {
            name: "wasm_1000",
            unit: "µs",
            peer: "one loaded kernel",
            target: Target::AtMost(1.5),
            ours: get(client, structures, calls, extent.loaded),
            theirs: one(),
        },
    ])
}

/// Looks up values of 64 bytes by this many loaded kernels in turn.
fn get<'a>(client: &'a Client, structures: &'a Structures, calls: usize, kernels: u64) -> Run<'a> {
    let (table, keys) = structures.table(64);
    let (mut draws, mut out) = (Draws::new(3), Vec::new());
    Box::new(move || {
        median_us(calls, |i| {
            out.clear();
            let params = table.params(draws.one_of(keys)).to_bytes();
            let opcode = loaded::FIRST + i as u64 % kernels;
            let len = client.kernels.borrow_mut().call(opcode, &params, &mut out)?;
            expect_found(len == 64)
        })
    })
}

/// The mean time, in ns, of a call by the host itself: without packets, so that little but the call
/// remains.
fn bare(client: &Client, opcode: u64, calls: usize) -> Run<'_> {
    let call = Header::default().to_bytes();
    Box::new(move || {
        let start = Instant::now();
        for _ in 0..calls {
            client.queue_pair().call_kernel(opcode, &call)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    })
}
