//! A BlueField-2, whose network engine moves data between the host's memory and that of its own
//! processors by RDMA, as perftest does with a client on one side and a server on the other.
//!
//! The paper says little about this machine and gives no figures, so most values are assumed.

use super::NS;
use super::circuit::{Circuit, ResourceId, Step};
use super::parameter::{Ground, Parameter, Unit};
use super::pcie::{COMPLETION_HEADER, Generation, Lanes, Link, MaxPayload, WRITE_HEADER};
use super::rate::Rate;
use super::resource::{Order, Terms};

macro_rules! parameters {
    ($($id:ident = $value:expr, $unit:ident, $ground:ident, $name:literal, $source:literal;)*) => {
        $(const $id: Parameter = Parameter {
            name: $name,
            value: $value,
            unit: Unit::$unit,
            ground: Ground::$ground,
            source: $source,
        };)*
        /// All values of the model.
        pub const PARAMETERS: &[Parameter] = &[$($id),*];
    };
}

parameters! {
    ENGINE = 12_500_000_000, PerSecond, Paper, "network engine, each direction",
        "§5.2: a port of 100 Gb/s";
    LANES = 16, Count, Paper, "lanes of PCIe Gen 4 to the host", "§5.2: 8 or 16";
    DDR = 25_600_000_000, PerSecond, Document, "processors' DRAM",
        "§5.2: one DDR4 controller; NVIDIA: 3200 MT/s, 8 B";
    MTU = 1024, Bytes, Assumed, "path MTU", "what an Ethernet MTU of 1,500 permits";
    HEADERS = 62, Bytes, Document, "headers of a packet",
        "RoCE v2: Ethernet 18, IPv4 20, UDP 8, BTH 12, ICRC 4";
    DEPTH = 128, Count, Document, "messages in flight", "perftest: --tx-depth";
    READS = 16, Count, Document, "READs in flight", "perftest: --outs, what the card permits";
    POST_HOST = 100 * NS, Time, Assumed, "posting a message, host's processor", "";
    POST_ARM = 200 * NS, Time, Assumed, "posting a message, card's processor", "half as fast";
    HOST = 706 * NS, Time, Measured, "round trip to the host's memory",
        "pcie-bench: a read of 512 B";
    SOC = 400 * NS, Time, Assumed, "round trip to the processors' memory", "";
    TURN = 500 * NS, Time, Assumed, "the engine's work on a message, both ends", "";
}

/// The operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Client {
    /// A program on the host (the paper's H2C).
    Host,
    /// A program on the card's processors (the paper's C2H).
    Card,
}

/// What a message's or a packet's end means.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Posted,
    Moved { last: bool },
    Over,
}

struct Parts {
    depth: ResourceId,
    reads: ResourceId,
    post: ResourceId,
    engine: ResourceId,
    /// From memory to the engine: the host's link, the processors' memory.
    from: [ResourceId; 2],
    to: [ResourceId; 2],
}

/// The bandwidth of `messages` of `bytes`, in 10⁹ bytes per second.
///
/// # Panics
/// If there are none, or they are empty.
pub fn run(verb: Verb, client: Client, bytes: u64, messages: u64) -> f64 {
    assert!(bytes > 0 && messages > 0, "nothing to transfer");
    let mut circuit = Circuit::default();
    let parts = Parts::new(&mut circuit, client);
    for _ in 0..messages {
        let mut steps = vec![Step::Take(parts.depth), Step::Pass(parts.post, 1)];
        if verb == Verb::Read {
            steps.extend([Step::Take(parts.reads), Step::Pass(parts.engine, HEADERS.value + 16)]);
        }
        steps.push(Step::Wait(TURN.value));
        circuit.send(0, 0, steps.into(), Meaning::Posted);
    }
    let mut over = 0;
    while let Some(token) = circuit.next_end() {
        match token {
            Meaning::Posted => parts.packets(&mut circuit, verb, client, bytes),
            Meaning::Moved { last: true } => {
                let mut steps = vec![Step::Wait(TURN.value)];
                if verb == Verb::Read {
                    steps.push(Step::Release(parts.reads));
                }
                steps.push(Step::Release(parts.depth));
                circuit.send(0, 0, steps.into(), Meaning::Over);
            }
            Meaning::Moved { last: false } => {}
            Meaning::Over => over += 1,
        }
    }
    assert_eq!(over, messages, "a message never ends");
    (bytes * messages) as f64 * 1e3 / circuit.now() as f64
}

impl Parts {
    fn new(circuit: &mut Circuit<Meaning>, client: Client) -> Parts {
        let host = Link {
            generation: Generation::Gen4,
            lanes: Lanes::X16,
            payload: MaxPayload::B256,
            read_request: 512,
        };
        let fifo = |rate| Terms { rate, order: Order::Fifo, ..Terms::default() };
        let room = |most: Parameter| Terms { window: Some(most.value as u32), ..fifo(None) };
        let post = match client {
            Client::Host => POST_HOST,
            Client::Card => POST_ARM,
        };
        let ddr = fifo(Some(Rate::per_second(DDR.value)));
        let link = fifo(Some(host.packets()));
        Parts {
            depth: circuit.add(room(DEPTH)),
            reads: circuit.add(room(READS)),
            post: circuit.add(fifo(Some(Rate::new(1, post.value)))),
            engine: circuit.add(fifo(Some(Rate::per_second(ENGINE.value)))),
            from: [circuit.add(link), circuit.add(ddr)],
            to: [circuit.add(link), circuit.add(ddr)],
        }
    }

    /// Sends the packets of a message.
    fn packets(&self, circuit: &mut Circuit<Meaning>, verb: Verb, client: Client, bytes: u64) {
        // Data of a WRITE comes from the client's memory, of a READ from the server's.
        let is_from_host = (client == Client::Host) == (verb == Verb::Write);
        let (from, to) = if is_from_host { (0, 1) } else { (1, 0) };
        let latency = if is_from_host { HOST.value } else { SOC.value };
        let mut left = bytes;
        while left > 0 {
            let len = left.min(MTU.value);
            left -= len;
            // A packet's data takes several packets of the link.
            let pieces = len.div_ceil(MaxPayload::B256.bytes());
            let on_link = |side: usize, header| len + if side == 0 { pieces * header } else { 0 };
            let steps = [
                Step::Wait(latency),
                Step::Pass(self.from[from], on_link(from, COMPLETION_HEADER)),
                Step::Pass(self.engine, len + HEADERS.value),
                Step::Pass(self.to[to], on_link(to, WRITE_HEADER)),
            ];
            circuit.send(0, 0, steps.into(), Meaning::Moved { last: left == 0 });
        }
    }
}
