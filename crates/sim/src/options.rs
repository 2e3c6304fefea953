//! The options of a random world, drawn from its seed as in swarm testing: most worlds use only
//! some of the verbs and faults, so that rare combinations occur as well.

use core::fmt;
use core::time::Duration;

use remora_nic::qp::{Congestion, Mtu};
use remora_nic::wire::{Dialect, Transport};
use remora_nic::{Ecn, Psn, Rate, RateLimits};
use remora_offload::kernel::ExecutorLimits;

use crate::dice::Dice;
use crate::endpoint::{ConnectOptions, QueueOptions};
use crate::faults::Faults;
use crate::guests::GuestOptions;
use crate::hardware::pcie::{Generation, Lanes, MaxPayload};
use crate::hardware::port::Bus;
use crate::hardware::{Link, PortTerms};
use crate::link_faults::LinkOptions;
use crate::memory::Layout;
use crate::stores::StoreOptions;
use crate::world::DriverOptions;

/// The most clients of a card, besides its owner.
pub(crate) const CLIENTS_MAX: u16 = 4;

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
    /// Binds a memory window, whose key the peer uses from then on.
    BindWindow,
    /// RPC: calls a kernel of the peer's card (StRoM §5.1).
    Rpc,
    /// RPC WRITE: calls a kernel with payload (StRoM §5.1).
    RpcWrite,
}

impl Verb {
    /// All verbs except calls of kernels, which only some cards support.
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

    /// The verbs that XRC has op-codes for.
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

    /// Whether the verb carries bytes from this end to the peer.
    pub fn sends_data(self) -> bool {
        use Verb::{BindWindow, CompareSwap, FetchAdd, Flush, Read};
        !matches!(self, Read | CompareSwap | FetchAdd | Flush | BindWindow)
    }

    /// Whether the verb calls a kernel.
    pub fn is_call(self) -> bool {
        matches!(self, Verb::Rpc | Verb::RpcWrite)
    }

    /// The verbs that a service supports.
    pub fn of(transport: Transport) -> &'static [Verb] {
        match transport {
            Transport::Rc => &Verb::ALL,
            Transport::Xrc => &Verb::XRC,
            Transport::Uc => &[Verb::Send, Verb::SendImm, Verb::Write, Verb::WriteImm],
            Transport::Ud => &[Verb::Send, Verb::SendImm],
        }
    }
}

/// One connection, or two datagram queue pairs that talk to each other. On XRC the first end is
/// the initiator and the second the target.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// The service.
    pub transport: Transport,
    /// The hosts of both ends; both may be the same host.
    pub hosts: [usize; 2],
    /// The queues of both ends.
    pub queues: QueueOptions,
    /// The attributes of both ends.
    pub connect: ConnectOptions,
    /// The first PSN that each end sends.
    pub psns: (Psn, Psn),
    /// How the pages of its regions lie.
    pub layout: Layout,
    /// The longest message in bytes.
    pub message_max: u64,
    /// The verbs in use.
    pub verbs: Vec<Verb>,
    /// Work requests that each end posts.
    pub operations: u64,
    /// By end: whether it uses its host's shared receive queue.
    pub shared: [bool; 2],
    /// The probability that a free receive element is posted when the host looks after its queues.
    pub receiver_speed: f64,
    /// By end: the number of requests after which it goes to ERROR on purpose.
    pub gives_up_after: [Option<u64>; 2],
    /// By end: the index of the multicast group that it belongs to.
    pub groups: [Option<usize>; 2],
}

/// The options of a whole world.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed that all options come from.
    pub seed: u64,
    /// The number of hosts.
    pub hosts: usize,
    /// Addresses are IPv6.
    pub ipv6: bool,
    /// The properties of the links.
    pub link: LinkOptions,
    /// The faults of the first phase.
    pub faults: Faults,
    /// The longest duration of the first phase.
    pub broken_for: Duration,
    /// The hosts' links towards them have the rate of those that leave them, and the switch between
    /// has a buffer of so many bytes. `None`: packets only share the links that leave hosts.
    pub star: Option<u64>,
    /// How drivers behave.
    pub driver: DriverOptions,
    /// Hosts poll a completion queue only after its notification.
    pub event_driven: bool,
    /// The longest time after which a busy host looks after its queues again.
    pub tick: Duration,
    /// The cards' window, in packets.
    pub window_packets: u16,
    /// The cards' acknowledge interval, in packets.
    pub ack_every: u32,
    /// The elements that a card fetches in one turn.
    pub fetch_elements: u32,
    /// The bytes that a card sends in one turn.
    pub burst_bytes: u32,
    /// The cards' limit of outstanding messages.
    pub max_outstanding: usize,
    /// The paths over which queue pairs of the lossy dialect spread their packets.
    pub paths: u8,
    /// The ECN bits of packets.
    pub ecn: Ecn,
    /// Elements of each host's shared receive queue.
    pub shared_receives: u32,
    /// The connections.
    pub connections: Vec<ConnectionOptions>,
    /// How cards run kernels; `None`: they run none.
    pub kernels: Option<KernelOptions>,
    /// Shared receive queues in the XRC domain of each host.
    pub xrc_queues: usize,
    /// Elements of each of these queues.
    pub xrc_receives: u32,
    /// The number of multicast groups.
    pub groups: usize,
    /// The probability that a member leaves its group or joins it again when its host looks after
    /// its queues.
    pub restless: f64,
    /// The cards hand packets to themselves over without the network.
    pub local_shortcut: bool,
    /// The programs that share the cards with the applications.
    pub guests: Vec<GuestOptions>,
    /// The stores, whose clients are on the same hosts.
    pub stores: Vec<StoreOptions>,
}

/// How cards run kernels.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// How much kernels may use of a card.
    pub limits: ExecutorLimits,
    /// How long the kernels' memory accesses take; `None`: no time.
    pub port: Option<PortTerms>,
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
        let guests = guests(seed, &plan, &mut connections);
        let stores = stores(seed, &plan);
        let paths = lossy(seed, &mut connections);
        congestion(seed, &mut connections);
        let mut options = Options {
            seed,
            hosts,
            ipv6: dice.chance(0.25),
            link,
            faults: faults(&mut dice),
            star: None,
            broken_for: Duration::from_nanos(dice.scaled(100_000..=1_000_000_000)),
            driver: DriverOptions {
                receive_delay: Duration::from_nanos(dice.pick(&[0, 0, 300, 5_000])),
                transmit_batch: dice.pick(&[1, 8, 32, 64]),
                hardware: false,
            },
            event_driven: dice.coin(),
            tick: Duration::from_nanos(dice.scaled(1_000..=200_000)),
            window_packets,
            ack_every: dice.pick(&[1, 4, 16, 16, 64]),
            fetch_elements: dice.pick(&[1, 8, 8, 32]),
            burst_bytes: dice.pick(&[1, 4 << 10, 16 << 10, 64 << 10]),
            max_outstanding: dice.pick(&[2, 16, 1 << 20, 1 << 20]),
            paths,
            ecn: if dice.coin() { Ecn::Capable0 } else { Ecn::NotCapable },
            shared_receives: dice.pick(&[2, 16, 64]).max(least_shared(&connections) as u32),
            connections,
            kernels,
            xrc_queues,
            xrc_receives,
            groups,
            restless,
            local_shortcut: Dice::new(seed ^ 0x006C_6F63_616C).coin(),
            guests,
            stores,
        };
        let mut guests = core::mem::take(&mut options.guests);
        for guest in &mut guests {
            guest.may_fail = options.has_faults();
        }
        options.draw_network();
        Options { guests, ..options }
    }

    /// Draws what lies between the hosts and their cards. A switch that may drop packets is a
    /// fault, so only worlds that lose packets anyway have one.
    fn draw_network(&mut self) {
        let mut dice = Dice::new(self.seed ^ 0x006E_6574_776F_726B);
        self.driver.hardware = dice.chance(0.25);
        if dice.coin() {
            let buffer = dice.scaled(30_000..=1_000_000);
            self.star = Some(if self.faults.loss > 0.0 { buffer } else { u64::MAX });
        }
    }

    /// Whether the network does more in the first phase than to carry packets.
    fn has_faults(&self) -> bool {
        let Faults { loss, duplicate, reorder, corrupt, outage, .. } = self.faults;
        loss + duplicate + reorder + corrupt + outage > 0.0
    }

    /// Whether a reliable connection with these options may fail by chance. If not, a failure is a
    /// bug.
    pub fn may_fail(&self, connection: &ConnectionOptions) -> bool {
        let Faults { loss, duplicate, reorder, corrupt, outage, .. } = self.faults;
        let harsh = loss + corrupt > 0.03 || duplicate > 0.03 || reorder > 0.03 || outage > 0.0;
        let somebody_gives_up = connection.gives_up_after.iter().any(Option::is_some);
        let troubled = loss + duplicate + reorder + corrupt > 0.0;
        let impatient = connection.connect.rnr_retry < 7;
        harsh || somebody_gives_up || impatient || troubled && connection.connect.retry_cnt < 7
    }
}

/// The fewest elements of a shared receive queue. An unreliable connection keeps the element that
/// it has begun to fill until its next message. That message may have to wait until a reliable
/// connection frees room on the card, and the reliable connection needs another element for that.
pub(crate) fn least_shared(connections: &[ConnectionOptions]) -> u64 {
    let unreliable = connections.iter().filter(|c| c.transport == Transport::Uc);
    let keepers = unreliable.flat_map(|c| c.shared).filter(|shared| *shared).count() as u64;
    (keepers + 1).next_power_of_two().max(2)
}

/// The parts of a world that its connections depend on.
struct Plan {
    hosts: usize,
    link: LinkOptions,
    window_packets: u16,
    connections: u64,
}

/// Kernels, in half of all worlds, and the connections that call them. A stream of chance of its
/// own keeps the other options of a seed independent of kernels.
fn kernels(seed: u64, connections: &mut [ConnectionOptions]) -> Option<KernelOptions> {
    let mut dice = Dice::new(seed ^ 0x6B65_726E_656C);
    if dice.coin() {
        return None;
    }
    for connection in connections.iter_mut().filter(|c| c.transport == Transport::Rc) {
        if dice.chance(0.25) {
            continue;
        }
        connection.connect.dialect = Dialect::KERNELS;
        let calls: &[Verb] = match dice.below(3) {
            0 => &[Verb::Rpc],
            1 => &[Verb::RpcWrite],
            _ => &[Verb::Rpc, Verb::RpcWrite],
        };
        // FLUSH has the same op-code as a call there.
        connection.verbs.retain(|verb| *verb != Verb::Flush);
        connection.verbs.extend_from_slice(calls);
    }
    let invocations = dice.pick(&[1, 4, 256, 256]);
    let limits = ExecutorLimits {
        invocations,
        result_bytes: dice.pick(&[256 << 10, 64 << 20]),
        turn_steps: dice.pick(&[1, 64, 4096]),
        turn_invocations: dice.pick(&[1, 8]),
        room_patience: Duration::from_millis(100),
        payload_patience: Duration::from_secs(1),
        ..ExecutorLimits::default()
    };
    let port = dice.coin().then(|| {
        let link = Link {
            generation: dice.pick(&[Generation::Gen3, Generation::Gen4]),
            lanes: dice.pick(&[Lanes::X8, Lanes::X16]),
            payload: dice.pick(&[MaxPayload::B128, MaxPayload::B256, MaxPayload::B512]),
            read_request: dice.pick(&[128, 512, 4096]),
        };
        PortTerms {
            round_trip: Duration::from_nanos(dice.scaled(100..=10_000)),
            bus: dice.pick(&[Bus::Pcie(link), Bus::Bytes(0)]),
            tags: dice.pick(&[1, 32, 256]),
        }
    });
    Some(KernelOptions { limits, port })
}

/// The lossy dialect, in half of all worlds, on most reliable connections. Uses a stream of chance
/// of its own, as [`kernels`] does. Returns the number of paths.
fn lossy(seed: u64, connections: &mut [ConnectionOptions]) -> u8 {
    let mut dice = Dice::new(seed ^ 0x006C_6F73_7379);
    if dice.coin() {
        return 1;
    }
    for connection in connections.iter_mut().filter(|c| c.transport == Transport::Rc) {
        if dice.chance(0.75) {
            connection.connect.dialect |= Dialect::LOSSY;
        }
    }
    dice.pick(&[1, 1, 2, 8, 64])
}

/// Congestion policies of their own, in half of all worlds, for reliable connections. Uses a stream
/// of chance of its own, as [`kernels`] does.
fn congestion(seed: u64, connections: &mut [ConnectionOptions]) {
    let mut dice = Dice::new(seed ^ 0x636F_6E67_6573);
    if dice.coin() {
        return;
    }
    for connection in connections.iter_mut().filter(|c| c.transport == Transport::Rc) {
        connection.connect.congestion = dice.pick(&Congestion::ALL);
    }
}

/// XRC, in a third of all worlds: some reliable connections become XRC connections, often from
/// several hosts to one. Uses a stream of chance of its own, as [`kernels`] does. Returns the
/// shared receive queues of a domain, and the elements of each.
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

/// Multicast groups, in a third of all worlds, and their members. Some connections become datagram
/// queue pairs. Uses a stream of chance of its own, as [`kernels`] does. Returns the number of
/// groups, and the probability that a member leaves or joins.
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

/// Guests, in a third of all worlds, with which the connections share the cards. Uses a stream of
/// chance of its own, as [`kernels`] does. Guests send little, so that the time-outs of connections
/// stay long enough.
fn guests(seed: u64, plan: &Plan, connections: &mut [ConnectionOptions]) -> Vec<GuestOptions> {
    let mut dice = Dice::new(seed ^ 0x6775_6573_7473);
    if !dice.chance(0.35) {
        return Vec::new();
    }
    let clients = dice.between(1..=u64::from(CLIENTS_MAX));
    for connection in connections {
        connection.queues.client = dice.below(clients + 1) as u16;
    }
    let guest = |_| {
        let mtu = dice.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]);
        let timeout = timeout(&mut dice, plan, mtu);
        let per_second = dice.pick(&[10_000, 1_000_000]);
        let rate = Rate { per_second, burst: dice.between(1..=20) };
        let elements = dice.chance(0.2).then_some(rate);
        let min_rnr_timer = dice.between(1..=14) as u8;
        let connect = ConnectOptions { mtu, timeout, min_rnr_timer, ..ConnectOptions::default() };
        let mut stops = || dice.coin().then(|| dice.scaled(1..=20_000));
        GuestOptions {
            stops: [stops(), stops()],
            hosts: [(); 2].map(|()| dice.below(plan.hosts as u64) as usize),
            clients: [(); 2].map(|()| dice.below(clients + 1) as u16),
            queue_pairs: dice.between(1..=4) as usize,
            limits: RateLimits { elements, bytes: None },
            shared: dice.coin(),
            messages: dice.scaled(1..=400),
            atomics: false,
            connect,
            may_fail: false,
        }
    };
    let mut guests: Vec<GuestOptions> = (0..=clients).map(guest).collect();
    // Drawn last, so that worlds whose guests have none are what they were before there were any.
    guests.iter_mut().for_each(|guest| guest.atomics = dice.coin());
    guests
}

/// A store, in a third of all worlds. Uses a stream of chance of its own, as [`kernels`] does.
fn stores(seed: u64, plan: &Plan) -> Vec<StoreOptions> {
    let mut dice = Dice::new(seed ^ 0x0073_746F_7265);
    if !dice.chance(0.35) {
        return Vec::new();
    }
    let mtu = dice.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]);
    let timeout = timeout(&mut dice, plan, mtu);
    vec![StoreOptions::draw(&mut dice, plan.hosts, mtu, timeout)]
}

/// Removes the verbs that the connection's service does not support.
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
        exported: false,
        client: 0,
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

/// A first PSN; half of the time so high that PSNs wrap round soon.
fn psn(dice: &mut Dice) -> Psn {
    let psn = dice.number() as u32;
    Psn::new(if dice.coin() { psn } else { 0u32.wrapping_sub(psn % 300) })
}

/// A timeout that does not expire while the queues of all links are full.
fn timeout(dice: &mut Dice, plan: &Plan, mtu: Mtu) -> u8 {
    let packet_ns = u64::from(mtu.bytes() + 150) * 8_000_000_000 / plan.link.bits_per_second;
    // Each connection sends requests and responses in both directions, perhaps over the same link,
    // and READ requests in pieces may exceed the window.
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
            "seed {seed}: {hosts} hosts, {family}, {} connection{}",
            self.connections.len(),
            if self.connections.len() == 1 { "" } else { "s" }
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
        match self.star {
            None => writeln!(f, "  switch  none: hosts' inputs are always fast enough")?,
            Some(u64::MAX) => writeln!(f, "  switch  with an endless buffer")?,
            Some(bytes) => writeln!(f, "  switch  with a buffer of {bytes} bytes")?,
        }
        self.fmt_cards(f)?;
        for (i, connection) in self.connections.iter().enumerate() {
            write!(f, "  {i:<7} {connection}")?;
        }
        Ok(())
    }
}

impl Options {
    /// Prints the hosts, their cards, and the objects besides connections.
    fn fmt_cards(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  hosts   {}{} every {:?}, receive delay {:?}, transmit batch {}",
            if self.driver.hardware { "in hardware, " } else { "" },
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
        if self.local_shortcut {
            writeln!(f, "          handing packets to themselves over")?;
        }
        for guest in &self.guests {
            let GuestOptions { hosts, clients, queue_pairs, messages, stops, .. } = guest;
            writeln!(
                f,
                "  guests  {} - {}, clients {} and {}, {queue_pairs} queue pairs, {messages} \
                 messages{}, stopping at {stops:?}",
                hosts[0],
                hosts[1],
                clients[0],
                clients[1],
                if guest.atomics { " with atomics" } else { "" }
            )?;
        }
        self.stores.iter().try_for_each(|store| write!(f, "{store}"))?;
        if let Some(KernelOptions { limits, port }) = &self.kernels {
            writeln!(
                f,
                "  kernels {} invocations, {} bytes of results, turns of {} steps and {} \
                 invocations, {port:?}",
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
            "{:?} {:?} {} {} - {}, MTU {}, {} requests each way up to {} bytes of {verbs:?}",
            self.transport,
            connect.dialect,
            connect.congestion.name(),
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
