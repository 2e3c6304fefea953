//! What loaded kernels cost beside native ones, in one run: an empty call, get end to end, and a
//! thousand modules in turn. The figures that count are those of `remora bench`; this is for
//! whoever works on the code.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Poll};
use std::time::Instant;

use remora::kernel::wasm::Module;
use remora::kernel::{CallStatus, Context, Deployment, Header, KernelClient, Program};
use remora::nic::Access;
use remora::offload::kernel::builtin::get;
use remora::{ConnectionParams, Device, QueuePairOptions};

const ROUNDS: usize = 25;
const GET: &[u8] = include_bytes!("../../../guest/built/get.wasm");
/// `(module (func (export "kernel") (result i32) (i32.const 0)))`
const EMPTY: &[u8] = &[
    0, b'a', b's', b'm', 1, 0, 0, 0, 1, 5, 1, 0x60, 0, 1, 0x7F, 3, 2, 1, 0, 7, 10, 1, 6, b'k',
    b'e', b'r', b'n', b'e', b'l', 0, 0, 10, 6, 1, 4, 0, 0x41, 0, 0x0B,
];

const NATIVE: u64 = 1;
const ONE: u64 = 2;
const GET_NATIVE: u64 = 3;
const GET_LOADED: u64 = 4;
const MANY: u64 = 1000;

/// A native function pointer as a kernel.
struct Pointer(fn() -> u32);

impl Program for Pointer {
    fn start(&mut self, _: Context) -> u32 {
        0
    }

    fn poll(&mut self, _: u32, _: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        match std::hint::black_box(self.0)() {
            0 => Poll::Ready(Ok(())),
            _ => Poll::Ready(Err(CallStatus::TRAP)),
        }
    }

    fn stop(&mut self, _: u32) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let (server, client) = (Device::open()?, Device::open()?);
    let make = |device: &Device| -> Result<_, Box<dyn Error>> {
        let pd = device.alloc_pd()?;
        let (send_cq, recv_cq) = (device.create_cq(1024)?, device.create_cq(1024)?);
        let rc = QueuePairOptions::rc(&send_cq);
        let qp = pd.create_qp(&rc.recv_cq(&recv_cq).send_sges(2))?;
        let memory = pd.alloc(1 << 20, Access::all())?;
        Ok((pd, send_cq, recv_cq, qp, memory))
    };
    let (_spd, _scq, _srcq, sqp, there) = make(&server)?;
    let (pd, _cq, recv_cq, qp, _here) = make(&client)?;
    let params = ConnectionParams { kernels: true, ..ConnectionParams::new(client.info().mtu) };
    qp.connect(sqp.local(), &params)?;
    sqp.connect(qp.local(), &params)?;

    let deployment = |name| Deployment::new(name, [there.grant_read()]);
    server.deploy_program(NATIVE, deployment("native"), Box::new(Pointer(|| 0)))?;
    server.load_kernel(ONE, deployment("empty"), &Module::load(EMPTY)?)?;
    server.deploy(GET_NATIVE, deployment("get"), get::get)?;
    server.load_kernel(GET_LOADED, deployment("get.wasm"), &Module::load(GET)?)?;
    let start = Instant::now();
    for i in 0..1000 {
        server.load_kernel(MANY + i, deployment("one of many"), &Module::load(GET)?)?;
    }
    println!("1000 modules compiled and loaded in {:.1} s", start.elapsed().as_secs_f64());

    let mut kernels = KernelClient::new(&pd, &qp, &recv_cq, 8, 1 << 16)?;
    let mut table = get::Table::new(1, 0);
    table.insert(5, get::Value { addr: there.addr() + 4096, len: 64 })?;
    there.write_at(0, table.bytes())?;
    let entry = get::Params { table: there.addr(), key: 5, entry: 0, chain_max: 0 }.to_bytes();

    // Invoked by the host itself: no packets, so that little is left beside the call.
    let header = Header::default().to_bytes();
    let local = |opcode| Ok(sqp.call_kernel(opcode, &header).map_err(|e| format!("{e:?}"))?);
    let empty = compare("empty call", 20_000, |who| local(if who { ONE } else { NATIVE }))?;
    println!("wasm_call_ns: {:.0} ns more than a native function pointer", empty.0 - empty.1);

    // Whoever serves spins, as a card does.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                server.progress();
            }
        });
        let mut out = Vec::new();
        let mut call = |opcode| {
            out.clear();
            kernels.call(opcode, &entry, &mut out)?;
            if out.len() == 64 { Ok(()) } else { Err("a wrong answer".into()) }
        };
        let measured = (|| {
            compare("wasm_get", 1000, |who| call(if who { GET_LOADED } else { GET_NATIVE }))?;
            let mut next = 0;
            compare("wasm_1000", 1000, |who| {
                next = (next + 1) % 1000;
                call(if who { MANY + next } else { MANY })
            })
        })();
        stop.store(true, Ordering::Relaxed);
        measured.map(|_| ())
    })
}

/// Runs both in turns, `n` times each a round; prints and returns the medians of each.
fn compare(
    name: &str,
    n: usize,
    mut step: impl FnMut(bool) -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut time = |who| {
        let start = Instant::now();
        for _ in 0..n {
            step(who)?;
        }
        Ok::<_, Box<dyn Error>>(start.elapsed().as_nanos() as f64 / n as f64)
    };
    time(true)?;
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let (a, b) = (time(true)?, time(false)?);
        rounds.iter_mut().zip([a, b, a / b]).for_each(|(list, value)| list.push(value));
    }
    let [a, b, ratio] = rounds.map(|mut list| {
        list.sort_by(f64::total_cmp);
        list[ROUNDS / 2]
    });
    println!("{name:12} loaded {a:8.0} ns   peer {b:8.0} ns   x {ratio:.2}");
    Ok((a, b))
}
