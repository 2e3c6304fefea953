//! All options of a random world, drawn from its seed, in the manner of a swarm: most worlds have
//! only some of all verbs and faults, so that the rare combinations come up too.

use core::fmt;
use core::time::Duration;

use remora_nic::qp::Mtu;
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{Ecn, Psn};
use remora_offload::kernel::{Limits, Timing};

use crate::dice::Dice;
use crate::endpoint::{ConnectOptions, QueueOptions};
use crate::faults::Faults;
use crate::memory::Layout;
use crate::network::LinkOptions;
use crate::world::DriverOptions;

/// The verbs of the work requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND with invalidate.
    SendInvalidate,
    /// WRITE.
    Write,
    /// WRITE with immediate data.
    WriteImm,
    /// READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Binds a memory window, by whose key the peer may go from then on.
    BindWindow,
    /// RPC: a kernel of the peer's card is called (StRoM).
    Rpc,
    /// RPC WRITE: the same, with payload.
    RpcWrite,
}

impl Verb {
    /// All verbs but those of kernels, which only some cards know.
    pub const ALL: [Verb; 11] = [
        Verb::Send,
        Verb::SendImm,
        Verb::SendInvalidate,
        Verb::Write,
        Verb::WriteImm,
        Verb::Read,
        Verb::CompareSwap,
        Verb::FetchAdd,
        Verb::AtomicWrite,
        Verb::Flush,
        Verb::BindWindow,
    ];

    /// Those that XRC has op-codes for.
    const XRC: [Verb; 9] = [
        Verb::Send,
        Verb::SendImm,
        Verb::SendInvalidate,
        Verb::Write,
        Verb::WriteImm,
        Verb::Read,
        Verb::CompareSwap,
        Verb::FetchAdd,
        Verb::BindWindow,
    ];

    /// Does it carry bytes of its own side to the other?
    pub fn sends_data(self) -> bool {
        use Verb::{BindWindow, CompareSwap, FetchAdd, Flush, Read};
        !matches!(self, Read | CompareSwap | FetchAdd | Flush | BindWindow)
    }

    /// Does it call a kernel?
    pub fn is_call(self) -> bool {
        matches!(self, Verb::Rpc | Verb::RpcWrite)
    }

    /// The verbs that a service has.
    pub fn of(transport: Transport) -> &'static [Verb] {
        match transport {
            Transport::Rc => &Verb::ALL,
            Transport::Xrc => &Verb::XRC,
            Transport::Uc => &[Verb::Send, Verb::SendImm, Verb::Write, Verb::WriteImm],
            Transport::Ud => &[Verb::Send, Verb::SendImm],
        }
    }
}

/// One connection, or two datagram queue pairs that talk. On XRC, the first end asks and the
/// second answers.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Service.
    pub transport: Transport,
    /// The hosts of its ends; they may be one and the same.
    pub hosts: [usize; 2],
    /// Queues of both ends.
    pub queues: QueueOptions,
    /// Attributes of both ends.
    pub connect: ConnectOptions,
    /// First PSNs.
    pub psns: (Psn, Psn),
    /// How the regions' pages lie.
    pub layout: Layout,
    /// The longest message.
    pub message_max: u64,
    /// Verbs in use.
    pub verbs: Vec<Verb>,
    /// Work requests each end posts.
    pub operations: u64,
    /// Which ends take from their host's shared receive queue.
    pub shared: [bool; 2],
    /// How likely a receive element is posted again at a time.
    pub receiver_speed: f64,
    /// An end goes to ERROR by itself after so many requests.
    pub gives_up_after: [Option<u64>; 2],
    /// The multicast groups that datagram ends are of, by index.
    pub groups: [Option<usize>; 2],
}

/// A whole world.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed all this comes from.
    pub seed: u64,
    /// How many hosts.
    pub hosts: usize,
    /// Addresses are IPv6.
    pub ipv6: bool,
    /// The links.
    pub link: LinkOptions,
    /// What goes wrong in the first phase.
    pub faults: Faults,
    /// How long the first phase lasts at most.
    pub broken_for: Duration,
    /// How drivers behave.
    pub driver: DriverOptions,
    /// Hosts poll completion queues only when notified.
    pub event_driven: bool,
    /// Hosts look after their queues so often, at most.
    pub tick: Duration,
    /// The cards' window.
    pub window_packets: u16,
    /// The cards' acknowledge interval.
    pub ack_every: u32,
    /// The cards' turn.
    pub fetch_elements: u32,
    /// The cards' turn, in bytes.
    pub burst_bytes: u32,
    /// The cards' pool of outstanding messages.
    pub max_outstanding: usize,
    /// ECN bits.
    pub ecn: Ecn,
    /// Elements of each host's shared receive queue.
    pub shared_receives: u32,
    /// The connections.
    pub connections: Vec<ConnectionOptions>,
    /// What runs kernels on each card, if something does.
    pub kernels: Option<KernelOptions>,
    /// Shared receive queues of each host's XRC domain.
    pub xrc_queues: usize,
    /// Elements of each of them.
    pub xrc_receives: u32,
    /// How many multicast groups there are.
    pub groups: usize,
    /// How likely a member leaves its group, or joins it again, at a time.
    pub restless: f64,
}

/// How cards run kernels.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// What they may take of a card.
    pub limits: Limits,
    /// How long memory takes.
    pub timing: Option<Timing>,
}

impl Options {
    /// The options of `seed`.
    pub fn draw(seed: u64) -> Options {
        let mut dice = Dice::new(seed);
        let hosts = dice.between(1..=4) as usize;
        let link = LinkOptions {
            latency: Duration::from_nanos(dice.scaled(100..=100_000)),
            jitter: Duration::from_nanos(dice.pick(&[0, 0, 500, 20_000])),
            bits_per_second: dice.pick(&[1, 10, 100, 400]) * 1_000_000_000,
        };
        let window_packets = dice.pick(&[4, 8, 32, 64, 64, 256]);
        let connections = dice.scaled(1..=8);
        let plan = Plan { hosts, link, window_packets, connections };
        let mut connections: Vec<ConnectionOptions> =
            (0..connections).map(|_| connection(&mut dice, &plan)).collect();
        let (xrc_queues, xrc_receives) = xrc(seed, hosts, &mut connections);
        let (groups, restless) = groups(seed, &mut connections);
        let kernels = kernels(seed, &mut connections);
        Options {
            seed,
            hosts,
            ipv6: dice.chance(0.25),
            link,
            faults: faults(&mut dice),
            broken_for: Duration::from_nanos(dice.scaled(100_000..=1_000_000_000)),
            driver: DriverOptions {
                receive_delay: Duration::from_nanos(dice.pick(&[0, 0, 300, 5_000])),
                transmit_batch: dice.pick(&[1, 8, 32, 64]),
            },
            event_driven: dice.coin(),
            tick: Duration::from_nanos(dice.scaled(1_000..=200_000)),
            window_packets,
            ack_every: dice.pick(&[1, 4, 16, 16, 64]),
            fetch_elements: dice.pick(&[1, 8, 8, 32]),
            burst_bytes: dice.pick(&[1, 4 << 10, 16 << 10, 64 << 10]),
            max_outstanding: dice.pick(&[2, 16, 1 << 20, 1 << 20]),
            ecn: if dice.coin() { Ecn::Capable0 } else { Ecn::NotCapable },
            shared_receives: dice.pick(&[2, 16, 64]).max(least_shared(&connections) as u32),
            connections,
            kernels,
            xrc_queues,
            xrc_receives,
            groups,
            restless,
        }
    }

    /// May a reliable connection with these options fail by chance? If not, a failure is a bug.
    pub fn may_fail(&self, connection: &ConnectionOptions) -> bool {
        let Faults { loss, duplicate, reorder, corrupt, outage, .. } = self.faults;
        let harsh = loss + corrupt > 0.03 || duplicate > 0.03 || reorder > 0.03 || outage > 0.0;
        let somebody_gives_up = connection.gives_up_after.iter().any(Option::is_some);
        let troubled = loss + duplicate + reorder + corrupt > 0.0;
        let impatient = connection.connect.rnr_retry < 7;
        harsh || somebody_gives_up || impatient || troubled && connection.connect.retry_cnt < 7
    }
}

/// Elements that each host's shared receive queue needs at least. An unreliable connection keeps
/// the one that it began to fill until its next message, which may have to wait for a reliable
/// one's room on the card; so that must find another.
pub(crate) fn least_shared(connections: &[ConnectionOptions]) -> u64 {
    let unreliable = connections.iter().filter(|c| c.transport == Transport::Uc);
    let keepers = unreliable.flat_map(|c| c.shared).filter(|shared| *shared).count() as u64;
    (keepers + 1).next_power_of_two().max(2)
}

/// What connections depend on.
struct Plan {
    hosts: usize,
    link: LinkOptions,
    window_packets: u16,
    connections: u64,
}

/// Kernels, in half of all worlds, and who calls them. Drawn apart, so that the rest of a world is
/// what its seed made of it before there were kernels.
fn kernels(seed: u64, connections: &mut [ConnectionOptions]) -> Option<KernelOptions> {
    let mut dice = Dice::new(seed ^ 0x6B65_726E_656C);
    if dice.coin() {
        return None;
    }
    for connection in connections.iter_mut().filter(|c| c.transport == Transport::Rc) {
        if dice.chance(0.25) {
            continue;
        }
        connection.connect.dialect = Dialect::Strom;
        let calls: &[Verb] = match dice.below(3) {
            0 => &[Verb::Rpc],
            1 => &[Verb::RpcWrite],
            _ => &[Verb::Rpc, Verb::RpcWrite],
        };
        // FLUSH has the op-code of a call there.
        connection.verbs.retain(|verb| *verb != Verb::Flush);
        connection.verbs.extend_from_slice(calls);
    }
    let limits = Limits {
        invocations: dice.pick(&[1, 4, 256, 256]),
        result_bytes: dice.pick(&[256 << 10, 64 << 20]),
        turn_steps: dice.pick(&[1, 64, 4096]),
        turn_invocations: dice.pick(&[1, 8]),
        room_patience: Duration::from_millis(100),
        payload_patience: Duration::from_secs(1),
        ..Limits::default()
    };
    let timing = dice.coin().then(|| Timing {
        round_trip: Duration::from_nanos(dice.scaled(100..=10_000)),
        byte_ps: dice.pick(&[0, 100]),
    });
    Some(KernelOptions { limits, timing })
}

/// XRC, in a third of all worlds: some reliable connections become such, most often of several
/// hosts to one. Drawn apart, as kernels are. Returns how many shared receive queues a domain has,
/// and their elements.
fn xrc(seed: u64, hosts: usize, connections: &mut [ConnectionOptions]) -> (usize, u32) {
    let mut dice = Dice::new(seed ^ 0x0078_7263);
    if !dice.chance(0.35) {
        return (0, 0);
    }
    let target = dice.coin().then(|| dice.below(hosts as u64) as usize);
    for connection in connections.iter_mut().filter(|c| c.transport == Transport::Rc) {
        if dice.chance(0.3) {
            continue;
        }
        connection.transport = Transport::Xrc;
        connection.hosts[1] = target.unwrap_or(connection.hosts[1]);
        connection.shared = [false; 2];
        connection.gives_up_after[1] = None;
        keep_verbs(&mut dice, connection);
    }
    (dice.between(1..=4) as usize, dice.pick(&[2, 16, 64]))
}

/// Multicast groups, in a third of all worlds, and who is in which. Drawn apart, as kernels are;
/// some connections become datagram queue pairs. Returns how many groups, and how restless.
fn groups(seed: u64, connections: &mut [ConnectionOptions]) -> (usize, f64) {
    let mut dice = Dice::new(seed ^ 0x6772_6F75_7073);
    if !dice.chance(0.35) {
        return (0, 0.0);
    }
    let groups = dice.between(1..=3) as usize;
    for connection in connections.iter_mut() {
        if connection.transport == Transport::Rc && dice.chance(0.6) {
            connection.transport = Transport::Ud;
            connection.message_max = u64::from(connection.connect.mtu.bytes());
            connection.gives_up_after = [None; 2];
            keep_verbs(&mut dice, connection);
        }
        if connection.transport == Transport::Ud {
            let mut group = || dice.chance(0.8).then(|| dice.below(groups as u64) as usize);
            connection.groups = [group(), group()];
        }
    }
    (groups, dice.pick(&[0.0, 0.0, 0.01, 0.2]))
}

/// Leaves out the verbs that the connection's service does not have.
fn keep_verbs(dice: &mut Dice, connection: &mut ConnectionOptions) {
    let all = Verb::of(connection.transport);
    connection.verbs.retain(|verb| all.contains(verb));
    if connection.verbs.is_empty() {
        connection.verbs.push(dice.pick(all));
    }
}

fn faults(dice: &mut Dice) -> Faults {
    if dice.chance(0.15) {
        return Faults::default();
    }
    let mut some = |choices: &[f64]| if dice.coin() { dice.pick(choices) } else { 0.0 };
    let chances = [0.0005, 0.005, 0.02, 0.02, 0.1];
    let (loss, duplicate, reorder, corrupt) =
        (some(&chances), some(&chances), some(&chances), some(&chances));
    let mark = some(&[0.001, 0.05, 0.5]);
    let outage = some(&[0.0, 0.0, 0.0001, 0.001]);
    Faults {
        loss,
        duplicate,
        reorder,
        reorder_by: Duration::from_nanos(dice.scaled(100..=2_000_000)),
        corrupt,
        mark,
        outage,
        outage_for: Duration::from_nanos(dice.scaled(10_000..=20_000_000)),
        clog: dice.coin(),
    }
}

fn connection(dice: &mut Dice, plan: &Plan) -> ConnectionOptions {
    use Transport::{Rc, Uc, Ud};
    let transport = dice.pick(&[Rc, Rc, Rc, Rc, Uc, Ud]);
    let mtu = dice.pick(&[Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B1024, Mtu::B2048, Mtu::B4096]);
    let reads = dice.pick(&[1, 2, 4, 16]);
    let connect = ConnectOptions {
        mtu,
        max_rd_atomic: reads,
        max_dest_rd_atomic: reads,
        timeout: timeout(dice, plan, mtu),
        retry_cnt: dice.pick(&[7, 7, 7, 3, 1]),
        rnr_retry: dice.pick(&[7, 7, 7, 7, 7, 4]),
        min_rnr_timer: dice.between(1..=14) as u8,
        ..ConnectOptions::default()
    };
    let depth = |dice: &mut Dice| 1 << dice.between(0..=6);
    let queues = QueueOptions {
        sends: depth(dice),
        receives: depth(dice),
        sges: dice.between(1..=5) as usize,
        inline: dice.pick(&[0, 24, 100, 400]),
        completions: 1024,
        signal_all: dice.chance(0.2),
    };
    let longest = if transport == Ud { u64::from(mtu.bytes()) } else { dice.scaled(64..=2 << 20) };
    let all = Verb::of(transport);
    let some: Vec<Verb> = all.iter().copied().filter(|_| dice.coin()).collect();
    let verbs = if some.is_empty() { vec![dice.pick(all)] } else { some };
    let gives_up =
        |dice: &mut Dice| (transport == Rc && dice.chance(0.04)).then(|| dice.scaled(1..=100));
    ConnectionOptions {
        transport,
        hosts: [dice.below(plan.hosts as u64) as usize, dice.below(plan.hosts as u64) as usize],
        queues,
        connect,
        psns: (psn(dice), psn(dice)),
        layout: if dice.coin() {
            Layout::Contiguous
        } else {
            Layout::Scattered { shift: dice.between(6..=14) as u32 }
        },
        message_max: longest,
        verbs,
        operations: dice.scaled(4..=400).min(8 + (6 << 20) / plan.connections / longest),
        shared: [dice.chance(0.3), dice.chance(0.3)],
        receiver_speed: dice.pick(&[1.0, 1.0, 0.5, 0.1]),
        gives_up_after: [gives_up(dice), gives_up(dice)],
        groups: [None; 2],
    }
}

/// Half of the time so near the end of the circle that it wraps.
fn psn(dice: &mut Dice) -> Psn {
    let psn = dice.number() as u32;
    Psn::new(if dice.coin() { psn } else { 0u32.wrapping_sub(psn % 300) })
}

/// A timeout that does not run out while all links' queues are full.
fn timeout(dice: &mut Dice, plan: &Plan, mtu: Mtu) -> u8 {
    let packet_ns = u64::from(mtu.bytes() + 150) * 8_000_000_000 / plan.link.bits_per_second;
    // Each connection sends requests and responses both ways over what may be the same link, and
    // READ requests in pieces may overshoot the window.
    let queued = packet_ns * (u64::from(plan.window_packets) + 64) * plan.connections * 4;
    let latency = (plan.link.latency + plan.link.jitter).as_nanos() as u64;
    let least = 8 * latency + queued + 40_000;
    let code = (least / 4096).max(1).ilog2() as u8 + 1;
    code + dice.between(0..=3) as u8
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { seed, hosts, link, faults, .. } = self;
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        writeln!(
            f,
            "seed {seed}: {hosts} hosts, {family}, {} connections",
            self.connections.len()
        )?;
        writeln!(
            f,
            "  link    latency {:?}, jitter {:?}, {} Gb/s",
            link.latency,
            link.jitter,
            link.bits_per_second / 1_000_000_000
        )?;
        writeln!(
            f,
            "  faults  loss {}, duplicates {}, reordered {} by {:?}, corrupt {}, marked {}",
            faults.loss,
            faults.duplicate,
            faults.reorder,
            faults.reorder_by,
            faults.corrupt,
            faults.mark
        )?;
        let way = if faults.clog { "clogged" } else { "cut" };
        let (outage, most, end) = (faults.outage, faults.outage_for, self.broken_for);
        writeln!(f, "          outages {outage} for {most:?}, {way}; healed after {end:?}")?;
        self.fmt_cards(f)?;
        for (i, connection) in self.connections.iter().enumerate() {
            write!(f, "  {i:<7} {connection}")?;
        }
        Ok(())
    }
}

impl Options {
    /// The hosts, their cards, and what these have besides connections.
    fn fmt_cards(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  hosts   {} every {:?}, receive delay {:?}, transmit batch {}",
            if self.event_driven { "notified, else" } else { "polling" },
            self.tick,
            self.driver.receive_delay,
            self.driver.transmit_batch
        )?;
        writeln!(
            f,
            "  cards   window {}, acknowledge every {}, turn {} elements and {} bytes, pool {}, \
             {:?}",
            self.window_packets,
            self.ack_every,
            self.fetch_elements,
            self.burst_bytes,
            self.max_outstanding,
            self.ecn
        )?;
        writeln!(f, "          shared receive queues of {}", self.shared_receives)?;
        if self.xrc_queues > 0 {
            let (queues, receives) = (self.xrc_queues, self.xrc_receives);
            writeln!(f, "  XRC     domains of {queues} queues of {receives}")?;
        }
        if self.groups > 0 {
            writeln!(f, "  groups  {}, restless {}", self.groups, self.restless)?;
        }
        if let Some(KernelOptions { limits, timing }) = &self.kernels {
            writeln!(
                f,
                "  kernels {} invocations, {} bytes of results, turns of {} steps and {} \
                 invocations, {timing:?}",
                limits.invocations, limits.result_bytes, limits.turn_steps, limits.turn_invocations
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionOptions { hosts, queues, connect, psns, verbs, .. } = self;
        writeln!(
            f,
            "{:?} {} - {}, MTU {}, {} requests each way up to {} bytes of {verbs:?}",
            self.transport,
            hosts[0],
            hosts[1],
            connect.mtu.bytes(),
            self.operations,
            self.message_max
        )?;
        writeln!(
            f,
            "          queues {} and {}, {} entries, {} inline, reads {}, PSNs {} and {}, {:?}",
            queues.sends,
            queues.receives,
            queues.sges,
            queues.inline,
            connect.max_rd_atomic,
            psns.0,
            psns.1,
            self.layout
        )?;
        writeln!(
            f,
            "          timeout {}, {} retries, {} for RNR, timer {}, receivers {} quick, \
             shared {:?}, groups {:?}, giving up {:?}",
            connect.timeout,
            connect.retry_cnt,
            connect.rnr_retry,
            connect.min_rnr_timer,
            self.receiver_speed,
            self.shared,
            self.groups,
            self.gives_up_after
        )
    }
}
