//! Chains that serve clients over a network with losses, copies and reordering.

use core::time::Duration;

use remora_nic::queue::{Data, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Status};
use remora_nic::wire::Transport;
use remora_nic::{Access, Config, Psn};
use remora_offload::chain::link::RegionAt;
use remora_offload::chain::offload::list;
use remora_offload::chain::offload::lookup::Lookup;
use remora_offload::chain::offload::table::{Table, Value};
use remora_offload::chain::program::Program;
use remora_offload::chain::turing::{Compiled, Machine};
use remora_sim::chain::{SimChain, load, register};
use remora_sim::endpoint::{ConnectOptions, Endpoint, QueueOptions, connect};
use remora_sim::pair::address;
use remora_sim::world::{Step, World};
use remora_sim::{Faults, LinkOptions};

const SERVER: usize = 0;
const CLIENT: usize = 1;
const KEYS: u64 = 12;
const BUCKETS: usize = 32;
/// Offsets of the tables in the server's memory.
const CUCKOO: u64 = 1 << 13;
const LIST: u64 = 2 << 13;
const VALUES: u64 = 3 << 13;

fn value(i: u64) -> Vec<u8> {
    vec![i as u8 + 1; 100 + 300 * i as usize]
}

/// A server with tables and a list, and a host with clients.
struct Town {
    world: World,
    memory: RegionAt,
    table: Table,
    cuckoo: Table,
}

struct Client {
    end: Endpoint,
    buffer: RegionAt,
    _chain: SimChain,
}

impl Town {
    fn new(seed: u64, faults: Faults) -> Town {
        let mut world = World::new(seed, LinkOptions::default());
        world.network.faults = faults;
        for i in [SERVER, CLIENT] {
            world.add_host(Config::new(address(i)));
        }
        let host = &mut world.hosts[SERVER];
        let pd = host.nic.alloc_pd().unwrap();
        let memory = register(host, pd, 1 << 17, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let (mut table, mut cuckoo) = (Table::new(BUCKETS, 1), Table::new(BUCKETS, 4));
        let mut nodes = Vec::new();
        for i in 0..KEYS {
            let (addr, bytes) = (memory.addr + VALUES + i * 4096, value(i));
            host.memory.slice_mut(addr, bytes.len()).copy_from_slice(&bytes);
            let value = Value { addr, len: bytes.len() as u32 };
            table.insert(i + 1, value).unwrap();
            cuckoo.insert(i + 1, value).unwrap();
            nodes.push((i + 1, value));
        }
        let nodes = list::nodes(memory.addr + LIST, &nodes);
        for (offset, bytes) in [(0, table.bytes()), (CUCKOO, cuckoo.bytes()), (LIST, nodes)] {
            host.memory.slice_mut(memory.addr + offset, bytes.len()).copy_from_slice(&bytes);
        }
        Town { world, memory, table, cuckoo }
    }

    fn client(&mut self, program: &Program) -> Client {
        let at = &mut self.world.hosts[CLIENT];
        let pd = at.nic.alloc_pd().unwrap();
        let buffer = register(at, pd, 1 << 14, Access::LOCAL_WRITE);
        let queues = QueueOptions::default();
        let end = Endpoint::create(&mut self.world, (CLIENT, pd), Transport::Rc, &queues, None);
        let host = &mut self.world.hosts[SERVER];
        // Regions belong to protection domains, so each client has its own keys for the same
        // memory.
        let pd = host.nic.alloc_pd().unwrap();
        let shared = share(host, pd, self.memory);
        let chain = load(&mut self.world, (SERVER, pd), program, &[shared, shared]);
        let closed = ConnectOptions { access: Access::empty(), ..ConnectOptions::default() };
        let psns = (Psn::new(77), Psn::new(0x00FF_FFF0));
        connect(&mut self.world, (&end, &chain.client.unwrap()), &closed, psns);
        chain.start(&mut self.world);
        Client { end, buffer, _chain: chain }
    }

    /// Posts one message at each of these clients.
    fn post(&mut self, clients: &[Client], messages: &[Vec<u8>]) {
        for (Client { end, buffer, .. }, message) in clients.iter().zip(messages) {
            let sge = |offset: u64, len| Sge { addr: buffer.addr + offset, len, lkey: buffer.key };
            let into = [sge(1024, 8192)];
            end.post_recv(&mut self.world, &RecvRequest { wr_id: 0, sges: &into }).unwrap();
            let memory = &mut self.world.hosts[CLIENT].memory;
            memory.slice_mut(buffer.addr, message.len()).copy_from_slice(message);
            let data = Data::Sges(&[sge(0, message.len() as u32)]);
            let (op, flags) = (SendOp::Send { imm: None, to: None }, SendFlags::SIGNALED);
            end.post_send(&mut self.world, &SendRequest { wr_id: 0, op, data, flags }).unwrap();
        }
    }

    /// Posts one message at each client, and returns the answers.
    fn ask(&mut self, clients: &[Client], messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.post(clients, messages);
        self.world.run(Duration::from_secs(5));
        let answer = |client: &Client, world: &mut World| {
            let sent = Endpoint::drain(world, CLIENT, client.end.send_cq);
            assert!(sent.iter().all(|entry| entry.status == Status::Success), "{sent:?}");
            let got = Endpoint::drain(world, CLIENT, client.end.recv_cq);
            assert_eq!(got.len(), 1, "one answer: {got:?}");
            let memory = &world.hosts[CLIENT].memory;
            memory.slice(client.buffer.addr + 1024, got[0].len as usize).to_vec()
        };
        clients.iter().map(|client| answer(client, &mut self.world)).collect()
    }
}

/// Registers the same memory for another protection domain.
fn share(host: &mut remora_sim::world::Host, pd: remora_nic::Pd, memory: RegionAt) -> RegionAt {
    let len = 1 << 17;
    let pages = remora_nic::PageTable::contiguous(12, memory.addr, len);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let init = remora_nic::MrInit { iova: memory.addr, len, access, pages };
    RegionAt { addr: memory.addr, key: host.nic.reg_mr(pd, init).unwrap() }
}

/// A driver may hold back an acknowledge until an answer can carry it. Here the answer comes from
/// the chain, which the card runs only when the driver calls it.
#[test]
fn a_card_with_a_chain_to_run_wants_more_than_an_acknowledge() {
    let mut town = Town::new(0, Faults::default());
    let client = town.client(&Lookup::HOPSCOTCH.program());
    let addresses = town.table.addresses(town.memory.addr, 1);
    let message = Lookup::HOPSCOTCH.message(1, &addresses);
    town.post(&[client], &[message]);
    while town.world.step() != Some(Step::Card(SERVER)) {}
    let server = &town.world.hosts[SERVER].nic;
    assert!(server.wants_transmit() && !server.wants_acknowledge_only());
}

#[test]
fn many_clients_are_served_over_a_faulty_network() {
    let faults = Faults { loss: 0.05, duplicate: 0.05, ..Faults::default() };
    for seed in 0..4 {
        let mut town = Town::new(seed, if seed == 0 { Faults::default() } else { faults });
        let lookups = [
            Lookup::HOPSCOTCH,
            Lookup::HOPSCOTCH.in_parallel(),
            Lookup::CUCKOO,
            Lookup::CUCKOO.in_parallel(),
        ];
        let mut clients: Vec<Client> =
            lookups.iter().map(|lookup| town.client(&lookup.program())).collect();
        clients.push(town.client(&list::unrolled(KEYS as usize)));
        clients.push(town.client(&list::walking()));
        for round in 0..30 {
            let key = |client: usize| (round * 5 + client as u64) % (KEYS + 2) + 1;
            let at = town.memory.addr;
            let messages: Vec<Vec<u8>> = (0..clients.len())
                .map(|i| match lookups.get(i) {
                    Some(lookup) if lookup.slots == 1 => {
                        lookup.message(key(i), &town.table.addresses(at, key(i)))
                    }
                    Some(lookup) => {
                        lookup.message(key(i), &town.cuckoo.addresses(at + CUCKOO, key(i)))
                    }
                    None => list::message(key(i), at + LIST),
                })
                .collect();
            let answers = town.ask(&clients, &messages);
            for (i, answer) in answers.iter().enumerate() {
                let expected = if key(i) <= KEYS { value(key(i) - 1) } else { Vec::new() };
                assert_eq!(*answer, expected, "seed {seed}, round {round}, client {i}");
            }
        }
    }
}

#[test]
fn a_machine_computes_beside_traffic() {
    let mut town = Town::new(9, Faults::default());
    let machine = Machine::automaton(110);
    let row: Vec<u8> = (0..24).map(|i| u8::from(i % 5 == 0)).collect();
    let tape = Machine::automaton_tape(&row);
    // The machine leaves its tape after a number of steps: an endless one would keep the world
    // busy for ever.
    let compiled = machine.compile(&tape[..tape.len() - 2], 1);
    let host = &mut town.world.hosts[SERVER];
    let pd = host.nic.alloc_pd().unwrap();
    let chain = load(&mut town.world, (SERVER, pd), &compiled.program, &[]);
    chain.start(&mut town.world);
    let clients = [town.client(&Lookup::HOPSCOTCH.program())];
    let message = Lookup::HOPSCOTCH.message(3, &town.table.addresses(town.memory.addr, 3));
    assert_eq!(town.ask(&clients, &[message]), [value(2)]);
    let mut plain = machine.start(&tape[..tape.len() - 2], 1);
    for _ in 0..row.len() {
        assert!(machine.step(&mut plain));
    }
    let at = compiled.tape_addr(chain.layout());
    let bytes = town.world.hosts[SERVER].memory.slice(at, compiled.tape.len as usize);
    assert_eq!(Compiled::symbols(bytes)[..row.len()], plain.tape[..row.len()]);
    assert!(chain.completions(&town.world, compiled.ring) >= row.len() as u64);
}
