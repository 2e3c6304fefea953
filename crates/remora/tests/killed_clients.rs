//! Processes that are killed, or stopped, at any moment, as clients of a daemon that is a process,
//! too. Behind each test the daemon has what it had before: no session, and no more descriptors and
//! mappings.

mod daemon;
mod support;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use daemon::process::{DaemonProcess, Held, wait_for_sessions};
use daemon::program::{Program, heard, read, written};
use daemon::side::{LEN, Side};
use daemon::until::until;
use remora::ConnectionEnd;
use remora::daemon::Observer;
use remora::kernel::builtin::{Builtin, Kind, RemoteTable};
use remora::kernel::{Bound, CallFailure, KernelClient};
use remora::memory::Buffer;
use remora::nic::qp::{QpAttr, State};
use remora::nic::queue::{SendOp, Status};
use remora::offload::chain::offload::list;
use remora::offload::chain::offload::table::Value;
use remora::offload::kernel::builtin::{get, opcode};
use remora::prelude::*;
use rustix::process::{Pid, Signal, kill_process};

const LONG: Duration = Duration::from_secs(60);

/// A daemon, and what it has when it has no clients.
struct Watched {
    daemon: DaemonProcess,
    before: Held,
}

impl Watched {
    fn start(name: &str) -> Watched {
        let daemon = DaemonProcess::start(name);
        // What it makes for its first client only.
        drop(daemon.attach());
        let watched = Watched { before: Held::by(&daemon.child.id().to_string()), daemon };
        watched.wait_for_sessions(0);
        Watched { before: Held::by(&watched.daemon.child.id().to_string()), ..watched }
    }

    fn observer(&self) -> Observer {
        Observer::connect(Some(&self.daemon.socket)).unwrap()
    }

    fn wait_for_sessions(&self, count: usize) {
        wait_for_sessions(&self.observer(), count);
    }

    /// Waits until nothing is left of any client.
    fn wait_until_clean(&self) {
        self.wait_for_sessions(0);
        self.before.wait_until_no_more(&self.daemon.child.id().to_string());
    }

    fn program(&self, name: &str, keep: &str) -> Program {
        Program::start(name, &self.daemon.socket, keep)
    }
}

/// Registers private memory for atomics, for ever: its pages become shared ones.
#[test]
#[ignore = "a program for other tests"]
fn converts() {
    let device = Device::open().unwrap();
    let domain = device.alloc_pd().unwrap();
    loop {
        let buffer = Buffer::new(1 << 20).unwrap();
        buffer.fill(7);
        let memory = domain.register(buffer, Access::all()).unwrap();
        assert_eq!(memory.slice(..8).to_vec().unwrap(), [7; 8]);
        println!("says registered");
    }
}

#[test]
fn a_program_is_killed_while_its_memory_is_converted() {
    let watched = Watched::start("converts");
    for round in 0..24 {
        let mut program = watched.program("converts", "");
        program.says();
        thread::sleep(Duration::from_micros(round * 130));
        program.kill();
    }
    watched.wait_until_clean();
}

/// Lends its memory until it is told otherwise; then it ends its queue pair, and looks whether its
/// memory is its own.
#[test]
#[ignore = "a program for other tests"]
fn lends() {
    let side = Side::on(Device::open().unwrap());
    println!("says {}", side.described());
    side.connect(&heard());
    println!("says ready");
    heard();
    side.qp.modify(&QpAttr { state: Some(State::Error), ..QpAttr::default() }).unwrap();
    println!("says ended");
    heard();
    side.memory.buffer().unwrap().fill(0xEE);
    println!("says filled");
    heard();
    let whole = side.memory.slice(..LEN).to_vec().unwrap() == vec![0xEE; LEN];
    println!("says {}", if whole { "untouched" } else { "touched" });
    heard();
}

/// Writes a peer's memory until it fails.
#[test]
#[ignore = "a program for other tests"]
fn writes() {
    let side = Side::on(Device::open().unwrap());
    println!("says {}", side.described());
    let to = side.connect(&heard());
    let mut past = false;
    loop {
        let (status, is_past) = side.writes(to);
        if is_past && !past {
            past = true;
            println!("says past");
        }
        if status != Status::Success {
            println!("says failed");
            heard();
            return;
        }
    }
}

/// Two programs, one of which writes the other's memory past the card.
fn joined(watched: &Watched) -> (Program, Program) {
    let mut lender = watched.program("lends", "");
    let mut writer = watched.program("writes", "");
    let (theirs, own) = (lender.says(), writer.says());
    lender.hears(&own);
    assert_eq!(lender.says(), "ready");
    writer.hears(&theirs);
    assert_eq!(writer.says(), "past");
    (lender, writer)
}

#[test]
fn both_ends_of_a_pass_are_killed_at_once() {
    let watched = Watched::start("both-ends");
    for round in 0..8 {
        let (mut lender, mut writer) = joined(&watched);
        thread::sleep(Duration::from_micros(round * 97));
        for program in if round % 2 == 0 { [&lender, &writer] } else { [&writer, &lender] } {
            program.signal(Signal::KILL);
        }
        lender.kill();
        writer.kill();
    }
    watched.wait_until_clean();
}

/// Stopped, most likely within a piece. The owner does not wait for ever, and once it has waited,
/// the writer may finish the piece that it was within, and writes no more.
#[test]
fn a_writer_is_stopped_within_a_piece() {
    let watched = Watched::start("stopped");
    for round in 0..4 {
        let (mut lender, mut writer) = joined(&watched);
        thread::sleep(Duration::from_micros(round * 97));
        writer.signal(Signal::STOP);
        lender.hears("end");
        assert_eq!(lender.says(), "ended");
        writer.signal(Signal::CONT);
        assert_eq!(writer.says(), "failed");
        lender.hears("fill");
        assert_eq!(lender.says(), "filled");
        lender.hears("look");
        assert_eq!(lender.says(), "untouched");
        writer.kill();
        lender.kill();
    }
    watched.wait_until_clean();
}

/// Serves a table by a kernel, and memory by a connection, until it is killed.
#[test]
#[ignore = "a program for other tests"]
fn serves() {
    let end = support::end_on(Device::open().unwrap());
    let mut table = get::Table::new(16, 48);
    let at = end.memory.remote(1 << 16).addr;
    table.insert(7, get::Value { addr: at, len: 5 }).unwrap();
    end.memory.write_at(1 << 16, b"seven").unwrap();
    end.memory.write_at(0, table.bytes()).unwrap();
    let deployment = Deployment::new("get", [end.memory.grant_read()]);
    end.device.deploy_kind(opcode::GET, deployment, Kind::Get, &Builtin::new()).unwrap();
    let tapped = end.pd.alloc(1 << 20, Access::all()).unwrap();
    let to = Bound::Region(tapped.key());
    let _tap = end.device.bind_builtin(to, vec![], Kind::HyperLogLog, &Builtin::new()).unwrap();
    let listener = end.device.listen(7471).unwrap();
    println!("says {} {}", written(end.qp.local()), end.memory.remote(0).addr);
    let (peer, _) = read(&heard());
    let params = ConnectionParams::new(end.device.info().mtu);
    end.qp.connect(peer, &params.kernels(true)).unwrap();
    println!("says {}", SocketAddr::new(end.device.info().address, listener.port()));
    let request = listener.accept().wait(LONG).unwrap();
    let qp = end.pd.create_qp(&QueuePairOptions::new()).unwrap();
    let connection = request.accept(qp, b"", &params).wait(LONG).unwrap();
    connection.send_remote(tapped.slice(..).remote()).wait(LONG).unwrap();
    println!("says serves");
    heard();
}

/// A client of the program [`serves`].
struct Served {
    end: support::End,
    kernel: KernelClient,
    table: RemoteTable,
    connection: Connection,
    qp: QueuePair,
    there: Remote,
}

impl Served {
    fn by(program: &mut Program) -> Served {
        let (end, line) = (support::end_on(embedded()), program.says());
        let (peer, numbers) = read(&line);
        let params = ConnectionParams::new(end.device.info().mtu);
        end.qp.connect(peer, &params.kernels(true)).unwrap();
        program.hears(&written(end.qp.local()));
        let address = program.says().parse().unwrap();
        let qp = end.pd.create_qp(&QueuePairOptions::new()).unwrap();
        let connection = end.device.connect(qp.clone(), address, b"", &params).wait(LONG).unwrap();
        let there = connection.recv_remote().wait(LONG).unwrap();
        assert_eq!(program.says(), "serves");
        let kernel = KernelClient::new(&end.pd, &end.qp, &end.recv_cq, 8, 1 << 20).unwrap();
        let table = RemoteTable { table: numbers[0], heads: 16 };
        Served { end, kernel, table, connection, qp, there }
    }

    /// Asks the kernel.
    fn asks(&mut self) -> Result<(), CallFailure> {
        let mut value = Vec::new();
        self.table.get(&mut self.kernel, 7, &mut value)?;
        assert_eq!(value, b"seven");
        Ok(())
    }

    /// Writes through the tap, and reads what it has written.
    fn moves(&self, bytes: &[u8]) -> Result<(), RequestError> {
        let there = self.there.slice(..bytes.len());
        let from = self.end.pd.alloc(bytes.len(), Access::all()).unwrap();
        from.write_at(0, bytes).unwrap();
        self.qp.write(from.slice(..), there).wait(LONG)?;
        let back = self.end.pd.alloc(bytes.len(), Access::all()).unwrap();
        self.qp.read(back.slice(..), there).wait(LONG)?;
        assert_eq!(back.slice(..).to_vec().unwrap(), bytes);
        Ok(())
    }
}

/// What the program has set up goes on: its kernels answer, and its connection stands.
#[test]
fn kernels_and_connections_of_a_kept_session_outlive_its_program() {
    let watched = Watched::start("kernels");
    let mut program = watched.program("serves", "table:10m");
    let mut served = Served::by(&mut program);
    served.asks().unwrap();
    served.moves(b"before").unwrap();
    program.kill();
    let until = Instant::now() + LONG;
    while watched.observer().status().unwrap().sessions[0].attached {
        assert!(Instant::now() < until, "the daemon does not notice the program's end");
        thread::yield_now();
    }
    for _ in 0..20 {
        served.asks().unwrap();
        served.moves(b"behind").unwrap();
    }
    assert_eq!(served.connection.end(), ConnectionEnd::Alive);
    watched.observer().evict("table").unwrap();
    served.connection.closed().wait(LONG).unwrap();
    drop(served);
    watched.wait_until_clean();
}

/// A kernel is called, and a tap has packets, when their program ends.
#[test]
fn a_program_is_killed_while_its_kernels_run() {
    let watched = Watched::start("running");
    for round in 0..8 {
        let mut program = watched.program("serves", "");
        let mut served = Served::by(&mut program);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(round * 311));
                program.kill();
            });
            if round % 2 == 0 {
                while served.asks().is_ok() {}
            } else {
                let failed = loop {
                    if let Err(error) = served.moves(&[7; 10_000]) {
                        break error;
                    }
                };
                assert!(!matches!(failed, RequestError::Timeout(_)), "{failed}");
            }
        });
    }
    watched.wait_until_clean();
}

/// Serves a list whose only node is behind itself: a look-up of another key walks for ever.
#[test]
#[ignore = "a program for other tests"]
fn walks() {
    let device = Device::open().unwrap();
    let domain = device.alloc_pd().unwrap();
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let value = Value { addr: memory.addr() + 1024, len: 5 };
    let mut nodes = list::nodes(memory.addr(), &[(9, value)]);
    nodes[24..32].copy_from_slice(&memory.addr().to_le_bytes());
    memory.write_at(0, &nodes).unwrap();
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()]).unwrap();
    println!("says {} {}", written(chain.local().unwrap()), memory.addr());
    chain.serve(read(&heard()).0, device.info().mtu).unwrap();
    println!("says serves");
    heard();
}

#[test]
fn a_program_is_killed_while_its_chain_walks_in_a_circle() {
    let watched = Watched::start("circle");
    for round in 0..8 {
        let mut program = watched.program("walks", "");
        let (peer, numbers) = read(&program.says());
        let device = embedded();
        let mut client = AsyncChainClient::new(&device.alloc_pd().unwrap(), 64).unwrap();
        client.connect(peer, device.info().mtu).unwrap();
        program.hears(&written(client.local()));
        assert_eq!(program.says(), "serves");
        let message = list::message(7, numbers[0]);
        let call = client.call(&message);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(1 + round));
                program.kill();
            });
            assert!(call.wait(Duration::from_secs(5)).is_err(), "there is no such key");
        });
        drop(client);
    }
    watched.wait_until_clean();
}

fn embedded() -> Device {
    DeviceOptions::new().embedded().open().unwrap()
}

/// Has memory that others reach.
#[test]
#[ignore = "a program for other tests"]
fn is_read() {
    let side = Side::on(Device::open().unwrap());
    println!("says {}", side.described());
    side.connect(&heard());
    println!("says ready");
    heard();
}

#[test]
fn a_lease_ends_while_a_peer_reads() {
    let watched = Watched::start("lease");
    for device in [embedded(), watched.daemon.attach()] {
        let mut program = watched.program("is_read", "lease:1s");
        let side = Side::on(device);
        let from = side.connect(&program.says());
        program.hears(&side.described());
        assert_eq!(program.says(), "ready");
        let read = || side.does(SendOp::Read { from });
        assert_eq!(read(), Status::Success);
        program.kill();
        let mut reads = 0;
        while read() == Status::Success {
            reads += 1;
        }
        assert!(reads > 0, "the session was kept for a while");
    }
    watched.wait_until_clean();
}

/// As [`is_read`], with a child that only sleeps, and has all descriptors of this process.
#[test]
#[ignore = "a program for other tests"]
fn has_a_child() {
    let side = Side::on(Device::open().unwrap());
    // SAFETY: the child calls nothing but `pause`, which is safe after a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: no pointers are passed.
            unsafe { libc::pause() };
        }
    }
    println!("says {child}");
    println!("says {}", side.described());
    side.connect(&heard());
    println!("says ready");
    heard();
}

/// A process that ends with the test.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
    }
}

/// A child that has its parent's connection, and does not use it, does not hide that the program
/// whose session is kept has ended.
#[test]
fn a_program_is_killed_whose_child_sleeps() {
    let watched = Watched::start("child");
    let mut program = watched.program("has_a_child", "lease:10m");
    let _child = Child(Pid::from_raw(program.says().parse().unwrap()).unwrap());
    let side = Side::on(watched.daemon.attach());
    let from = side.connect(&program.says());
    program.hears(&side.described());
    assert_eq!(program.says(), "ready");
    let reads = || side.does(SendOp::Read { from }) == Status::Success;
    assert!(reads());
    program.kill();
    let sessions = || watched.observer().status().unwrap().sessions;
    let is_noticed = || !sessions().iter().all(|held| held.attached);
    until("the daemon notices the program's end", is_noticed);
    assert!(reads(), "what is kept goes on");
    watched.observer().evict("lease").unwrap();
    drop(side);
    watched.wait_until_clean();
}
