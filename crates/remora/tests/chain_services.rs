//! What chains are for: they serve clients of other processes, and compute, while the host sleeps.

#[path = "support/peer.rs"]
mod peer;
#[path = "support/until.rs"]
mod until;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use peer::{read, written};
use remora::chain::{Chain, ChainClient};
use remora::nic::Access;
use remora::offload::chain::offload::list;
use remora::offload::chain::offload::lookup::Lookup;
use remora::offload::chain::offload::table::{Table, Value};
use remora::offload::chain::program::Program;
use remora::offload::chain::text;
use remora::offload::chain::turing::{Action, Compiled, Configuration, Machine, Move};
use remora::{Device, MemoryRegion, ProtectionDomain};
use until::until;

/// The environment variable that is set in the server's process.
const SERVER: &str = "REMORA_TEST_CHAIN_SERVER";
const CLIENTS: usize = 4;
const KEYS: u64 = 20;
/// From the beginning of the server's memory: the table, the cuckoo table, the list, the values.
const CUCKOO: u64 = 1 << 14;
const LIST: u64 = 2 << 14;
const VALUES: u64 = 3 << 14;
const BUCKETS: usize = 64;

fn value(i: u64) -> Vec<u8> {
    vec![i as u8 + 1; 10 + i as usize * 40]
}

fn programs() -> [Program; 5] {
    [
        Lookup::HOPSCOTCH.program(),
        Lookup::HOPSCOTCH.in_parallel().program(),
        Lookup::CUCKOO.program(),
        list::unrolled(KEYS as usize),
        list::walking(),
    ]
}

/// Memory with a value for each key, in two tables and a list.
fn fill(pd: &ProtectionDomain) -> MemoryRegion {
    let memory = pd.alloc(1 << 17, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let (mut table, mut cuckoo) = (Table::new(BUCKETS, 1), Table::new(BUCKETS, 4));
    let mut nodes = Vec::new();
    for i in 0..KEYS {
        let (offset, bytes) = (VALUES + i * 1024, value(i));
        memory.write_at(offset as usize, &bytes).unwrap();
        let value = Value { addr: memory.addr() + offset, len: bytes.len() as u32 };
        table.insert(i + 1, value).unwrap();
        cuckoo.insert(i + 1, value).unwrap();
        nodes.push((i + 1, value));
    }
    memory.write_at(0, &table.bytes()).unwrap();
    memory.write_at(CUCKOO as usize, &cuckoo.bytes()).unwrap();
    let nodes = list::nodes(memory.addr() + LIST, &nodes);
    memory.write_at(LIST as usize, &nodes).unwrap();
    memory
}

/// The server's process: it sets the chains up, and then waits for the end of its input.
#[test]
fn server_process() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let memory = fill(&pd);
    let programs = programs();
    let chains: Vec<Chain> = (programs.iter().flat_map(|program| [program; CLIENTS]))
        .map(|program| pd.load_chain(program, &[memory.clone(), memory.clone()]).unwrap())
        .collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nmemory {}", memory.addr()).unwrap();
    for chain in &chains {
        writeln!(out, "{}", written(chain.local().unwrap())).unwrap();
    }
    out.flush().unwrap();
    let mut lines = std::io::stdin().lock().lines();
    for chain in &chains {
        let client = read(&lines.next().unwrap().unwrap()).0;
        chain.serve(client, device.info().mtu).unwrap();
    }
    writeln!(out, "ready").unwrap();
    out.flush().unwrap();
    // From here on, this thread sleeps, and only the card works in this process.
    assert!(lines.next().is_none());
}

#[test]
fn another_process_serves_many_clients() {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_process", "--nocapture"])
        .env(SERVER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = server.stdin.take().unwrap();
    let mut from = BufReader::new(server.stdout.take().unwrap());
    let mut line = move || {
        let mut line = String::new();
        assert!(from.read_line(&mut line).unwrap() > 0, "the server has ended");
        line
    };
    let base = loop {
        if let Some(addr) = line().strip_prefix("memory ") {
            break addr.trim().parse::<u64>().unwrap();
        }
    };
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let mtu = device.info().mtu;
    let clients: Vec<ChainClient> = (0..programs().len() * CLIENTS)
        .map(|_| {
            let client = ChainClient::new(&device, &pd, 4096).unwrap();
            client.connect(read(line().trim()).0, mtu).unwrap();
            writeln!(to, "{}", written(client.local())).unwrap();
            client
        })
        .collect();
    assert_eq!(line().trim(), "ready");
    let (table, cuckoo) = (Table::new(BUCKETS, 1), Table::new(BUCKETS, 4));
    let messages = |kind: usize, key: u64| match kind {
        0 => Lookup::HOPSCOTCH.message(key, &table.addresses(base, key)),
        1 => Lookup::HOPSCOTCH.in_parallel().message(key, &table.addresses(base, key)),
        2 => Lookup::CUCKOO.message(key, &cuckoo.addresses(base + CUCKOO, key)),
        _ => list::message(key, base + LIST),
    };
    let mut answer = Vec::new();
    for round in 0..2 * KEYS {
        for (i, client) in clients.iter().enumerate() {
            // The list that is written out ends at its last key.
            let key = (round * 7 + i as u64) % (KEYS + 3) + 1;
            answer.clear();
            client.call(&messages(i / CLIENTS, key), &mut answer).unwrap();
            let expected = if key <= KEYS { value(key - 1) } else { Vec::new() };
            assert_eq!(answer, expected, "client {i}, key {key}");
        }
    }
    drop(to);
    assert!(server.wait().unwrap().success());
}

/// The tape of a machine on the card.
fn tape(chain: &Chain, compiled: &Compiled) -> Vec<u8> {
    Compiled::symbols(&chain.read(compiled.tape_addr(chain.layout()), compiled.tape.len).unwrap())
}

#[test]
fn rule_110_goes_on_until_it_is_stopped() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut row = vec![0; 30];
    row[29] = 1;
    let machine = Machine::automaton(110);
    let first = Machine::automaton_tape(&row);
    let compiled = machine.compile(&first, 1);
    let chain = pd.load_chain(&compiled.program, &[]).unwrap();
    chain.start().unwrap();
    until("10 000 steps", || chain.completions(compiled.ring).unwrap() >= 10_000);
    // The stopped chain stands at some step. The plain interpreter has the same tape at that step,
    // or at the next, whose lap may have begun.
    chain.queue_pairs().for_each(|qp| qp.modify(&stop()).unwrap());
    let (steps, tape) = (chain.completions(compiled.ring).unwrap(), tape(&chain, &compiled));
    let mut plain: Configuration = machine.start(&first, 1);
    (0..steps).for_each(|_| assert!(machine.step(&mut plain)));
    let before = plain.tape.clone();
    machine.step(&mut plain);
    assert!(tape == before || tape == plain.tape, "after {steps} steps");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(chain.completions(compiled.ring).unwrap(), steps, "it has been stopped");
}

fn stop() -> remora::nic::qp::QpAttr {
    let state = Some(remora::nic::qp::State::Error);
    remora::nic::qp::QpAttr { state, ..Default::default() }
}

#[test]
fn a_busy_beaver_halts_by_itself() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let act = |write, go, next: u16| Action { write, go, next: (next < 2).then_some(next) };
    // With two states, the machine takes six steps and leaves four ones.
    let beaver = Machine::new(vec![
        vec![act(1, Move::Right, 1), act(1, Move::Left, 1)],
        vec![act(1, Move::Left, 0), act(1, Move::Right, 2)],
    ])
    .unwrap();
    let compiled = beaver.compile(&[0; 8], 4);
    let chain = pd.load_chain(&compiled.program, &[]).unwrap();
    chain.start().unwrap();
    until("six steps", || chain.completions(compiled.ring).unwrap() >= 6);
    thread::sleep(Duration::from_millis(10));
    assert_eq!(chain.completions(compiled.ring).unwrap(), 6, "it has halted");
    let mut plain = beaver.start(&[0; 8], 4);
    while beaver.step(&mut plain) {}
    assert_eq!(tape(&chain, &compiled), plain.tape);
}

#[test]
fn a_text_runs_live() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let text = "data i = 0\nprogram {\n while i < 1000 { add i, 1 }\n}\n";
    let source = text::parse(text).unwrap();
    let chain = pd.load_chain(&source.program, &[]).unwrap();
    chain.start().unwrap();
    let i = source.program.items()[0].span;
    let at = source.program.address(chain.layout(), i.at);
    until("1000 rounds", || chain.read(at, 8).unwrap() == 1000u64.to_le_bytes());
}
