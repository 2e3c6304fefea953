//! AMD's XDMA engine and its Linux driver: transfers between a host's memory and a card's.
//!
//! A channel's caller is a thread that writes or reads a buffer again and again. The driver pins
//! the buffer's pages, writes a descriptor for each, and rings; the engine fetches descriptors,
//! splits them into requests, moves their data, and interrupts; the driver wakes the caller. All of
//! it passes resources that the channels share ([`Circuit`]), so that no formula says what
//! bounds a transfer.

use std::sync::Arc;

use super::alveo::{self, Machine};
use super::circuit::{Circuit, ResourceId, Route, Step};
use super::pcie::{READ_REQUEST, WRITE_HEADER};
use super::rate::Rate;
use super::resource::{Order, Terms};

/// The direction of transfers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Host to card.
    H2C,
    /// Card to host.
    C2H,
}

/// What is transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// Which way.
    pub direction: Direction,
    /// Channels, each with a caller of its own; 1 to 4.
    pub channels: u32,
    /// Bytes of a call.
    pub bytes: u64,
    /// Calls of each channel that count, one after the other. One call comes before them, and
    /// more behind them until those of all channels are over, so that all of them have company.
    pub calls: u32,
}

/// What the transfers took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Bytes that all channels have moved while calls of each counted.
    pub bytes: u64,
    /// That time, in picoseconds.
    pub ps: u64,
    /// The mean time of a call of the first channel, in picoseconds.
    pub call_ps: u64,
    /// The part of it in which its engine worked, in picoseconds.
    pub engine_ps: u64,
}

impl Outcome {
    /// The bandwidth of all channels together, in 10⁹ bytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.ps as f64
    }
}

/// Runs transfers.
///
/// # Panics
/// If there is nothing to run: no channel, no byte or no call.
pub fn run(machine: &Machine, load: Load) -> Outcome {
    assert!(load.channels > 0 && load.bytes > 0 && load.calls > 0, "nothing to transfer");
    let mut engine = Engine::new(machine, load);
    engine.run();
    let (first, calls) = (&engine.channels[0], u64::from(load.calls));
    Outcome {
        bytes: engine.moved,
        ps: engine.circuit.now() - engine.counts_from,
        call_ps: (first.ended - first.began) / calls,
        engine_ps: first.engine_ps / calls,
    }
}

/// What a transaction's end means.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    /// A caller calls.
    Call(u32),
    /// The driver's ring has reached the engine.
    Ring(u32),
    /// Descriptors have arrived.
    Fetched(u32, u64),
    /// A request's data is where it should be.
    Moved { channel: u32, bytes: u64, last_of_descriptor: bool },
    /// The driver has served an interrupt, and the caller is awake.
    Awake(u32),
    /// A call is over.
    Over(u32),
    /// The system on the card has accessed memory.
    Kernel,
    /// Nothing follows.
    Nothing,
}

/// A channel and its caller.
#[derive(Debug, Default)]
struct Channel {
    /// Calls that are over, with the first, which does not count.
    calls: u32,
    began: u64,
    ended: u64,
    rang: u64,
    engine_ps: u64,
    /// Bytes of the call that no run has taken yet.
    left: u64,
    /// Bytes of the run whose descriptors have not been fetched.
    unfetched: u64,
    /// Descriptors that are being fetched or processed.
    buffered: u64,
    /// Requests of the run that are in flight, plus bytes that no request covers yet.
    moving: u64,
}

/// The resources, by name.
#[derive(Debug)]
struct Parts {
    up: ResourceId,
    down: ResourceId,
    host: ResourceId,
    /// Tags or ids, by channel.
    ids: Vec<ResourceId>,
    axi: ResourceId,
    memory: ResourceId,
}

#[derive(Debug)]
struct Engine<'a> {
    machine: &'a Machine,
    load: Load,
    circuit: Circuit<Meaning>,
    parts: Parts,
    channels: Vec<Channel>,
    /// The route of a whole request.
    whole: Route,
    /// Channels whose first call is not over, and those that do not have enough calls.
    starting: u32,
    running: u32,
    /// Since when all channels' calls count, and the bytes moved since.
    counts_from: u64,
    moved: u64,
}

/// Descriptors that the engine has room for: a block that it processes, and the next.
const BUFFERED: u64 = 2 * alveo::ADJACENT.value;

/// The user of the card's memory that is not a channel.
const KERNEL: u32 = u32::MAX;

impl<'a> Engine<'a> {
    fn new(machine: &'a Machine, load: Load) -> Engine<'a> {
        let mut circuit = Circuit::default();
        let parts = Parts::new(&mut circuit, machine, load);
        let channels = (0..load.channels).map(|_| Channel::default()).collect();
        let mut engine = Engine {
            machine,
            load,
            circuit,
            parts,
            channels,
            whole: Arc::new([]),
            starting: load.channels,
            running: load.channels,
            counts_from: 0,
            moved: 0,
        };
        // Of equal ids, all channels have the same routes but for the resource of their ids.
        engine.whole = engine.route(0, engine.piece());
        engine
    }

    fn run(&mut self) {
        // The callers are processes of their own: their calls begin at even distances.
        let apart = self.driver_ps(self.submit_ps() + self.finish_ps() + 10 * alveo::WAKE.value);
        for channel in 0..self.load.channels {
            let delay = apart * u64::from(channel) / u64::from(self.load.channels);
            self.circuit.send(delay, channel, [].into(), Meaning::Call(channel));
        }
        if let Some(every) = self.machine.kernel_every_ps {
            self.access_of_kernel(every);
        }
        while self.running > 0 {
            let token = self.circuit.next_end().expect("a transfer ends");
            self.follow(token);
        }
    }

    fn follow(&mut self, token: Meaning) {
        match token {
            Meaning::Call(channel) => self.call(channel),
            Meaning::Ring(channel) => self.ring(channel),
            Meaning::Fetched(channel, bytes) => self.split(channel, bytes),
            Meaning::Moved { channel, bytes, last_of_descriptor } => {
                self.moved += bytes;
                self.arrived(channel, last_of_descriptor);
            }
            Meaning::Awake(channel) => self.awake(channel),
            Meaning::Over(channel) => self.over(channel),
            Meaning::Kernel => self.access_of_kernel(self.machine.kernel_every_ps.unwrap_or(1)),
            Meaning::Nothing => {}
        }
    }

    /// The driver's work before the first ring.
    fn call(&mut self, channel: u32) {
        let now = self.circuit.now();
        let this = &mut self.channels[channel as usize];
        if this.calls == 1 {
            (this.began, this.engine_ps) = (now, 0);
        }
        this.left = self.load.bytes;
        let submit = self.driver_ps(self.submit_ps());
        self.send_ring(channel, submit);
    }

    fn send_ring(&mut self, channel: u32, after: u64) {
        let ring = [Step::Wait(after + alveo::POSTED.value)].into();
        self.circuit.send(0, channel, ring, Meaning::Ring(channel));
    }

    fn ring(&mut self, channel: u32) {
        let now = self.circuit.now();
        let this = &mut self.channels[channel as usize];
        let run = this.left.min(alveo::RUN.value * alveo::PAGE.value);
        this.left -= run;
        (this.unfetched, this.moving, this.rang) = (run, run, now);
        self.fetch(channel);
    }

    /// Fetches descriptors while there is room for a block.
    fn fetch(&mut self, channel: u32) {
        let this = &mut self.channels[channel as usize];
        while this.unfetched > 0 && this.buffered + alveo::ADJACENT.value <= BUFFERED {
            let bytes = this.unfetched.min(alveo::ADJACENT.value * alveo::PAGE.value);
            let count = bytes.div_ceil(alveo::PAGE.value);
            this.unfetched -= bytes;
            this.buffered += count;
            let Parts { up, down, host, .. } = self.parts;
            let mut left = count * alveo::DESCRIPTOR.value;
            while left > 0 {
                let piece = left.min(self.machine.link.read_request);
                left -= piece;
                let steps = [
                    Step::Pass(up, READ_REQUEST),
                    Step::Pass(host, 0),
                    Step::Pass(down, self.machine.link.completion(piece)),
                ];
                let last = left == 0;
                let token = if last { Meaning::Fetched(channel, bytes) } else { Meaning::Nothing };
                self.circuit.send(0, channel, steps.into(), token);
            }
        }
    }

    /// Splits descriptors for `bytes` into requests.
    fn split(&mut self, channel: u32, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let mut page = left.min(alveo::PAGE.value);
            left -= page;
            while page > 0 {
                let piece = page.min(self.piece());
                page -= piece;
                let route = self.route_of(channel, piece);
                let last_of_descriptor = page == 0;
                let token = Meaning::Moved { channel, bytes: piece, last_of_descriptor };
                self.circuit.send(0, channel, route, token);
                let this = &mut self.channels[channel as usize];
                // From bytes to requests.
                this.moving = this.moving - piece + 1;
            }
        }
    }

    fn arrived(&mut self, channel: u32, last: bool) {
        let now = self.circuit.now();
        let this = &mut self.channels[channel as usize];
        this.moving -= 1;
        if last {
            this.buffered -= 1;
        }
        if this.moving > 0 {
            if last {
                self.fetch(channel);
            }
            return;
        }
        if this.calls <= self.load.calls {
            this.engine_ps += now - this.rang;
        }
        let served = alveo::INTERRUPT.value
            + alveo::REGISTER_READS.value * alveo::REGISTER_READ.value
            + 2 * alveo::WAKE.value;
        let steps = [
            Step::Pass(self.parts.up, WRITE_HEADER + 4),
            Step::Wait(alveo::POSTED.value + self.driver_ps(served)),
        ];
        self.circuit.send(0, channel, steps.into(), Meaning::Awake(channel));
    }

    fn awake(&mut self, channel: u32) {
        if self.channels[channel as usize].left > 0 {
            return self.send_ring(channel, 0);
        }
        let finish = [Step::Wait(self.driver_ps(self.finish_ps()))].into();
        self.circuit.send(0, channel, finish, Meaning::Over(channel));
    }

    fn over(&mut self, channel: u32) {
        let now = self.circuit.now();
        let this = &mut self.channels[channel as usize];
        this.calls += 1;
        if this.calls == 1 {
            self.starting -= 1;
            if self.starting == 0 {
                (self.counts_from, self.moved) = (now, 0);
            }
        }
        if this.calls == self.load.calls + 1 {
            this.ended = now;
            self.running -= 1;
        }
        self.call(channel);
    }

    fn access_of_kernel(&mut self, every: u64) {
        let Parts { axi, memory, .. } = self.parts;
        let bytes = alveo::KERNEL_BYTES.value;
        let steps = [Step::Wait(every), Step::Pass(axi, bytes), Step::Pass(memory, bytes)];
        self.circuit.send(0, KERNEL, steps.into(), Meaning::Kernel);
    }

    /// Bytes of a whole request.
    fn piece(&self) -> u64 {
        match self.load.direction {
            Direction::H2C => self.machine.link.read_request,
            Direction::C2H => self.machine.link.payload.bytes(),
        }
    }

    fn route_of(&self, channel: u32, bytes: u64) -> Route {
        let is_first = self.parts.ids[channel as usize] == self.parts.ids[0];
        if is_first && bytes == self.piece() {
            return Arc::clone(&self.whole);
        }
        self.route(channel, bytes)
    }

    /// The way of a request.
    fn route(&self, channel: u32, bytes: u64) -> Route {
        let Parts { up, down, host, axi, memory, .. } = self.parts;
        let (ids, machine) = (self.parts.ids[channel as usize], self.machine);
        match self.load.direction {
            Direction::H2C => {
                let (early, late) = match machine.tag_until_written {
                    true => (Step::Wait(0), Step::Release(ids)),
                    false => (Step::Release(ids), Step::Wait(0)),
                };
                [
                    Step::Take(ids),
                    Step::Pass(up, READ_REQUEST),
                    Step::Pass(host, 0),
                    Step::Pass(down, machine.link.completion(bytes)),
                    early,
                    Step::Pass(axi, bytes),
                    Step::Pass(memory, bytes),
                    Step::Wait(machine.interconnect_ps + machine.write_ps),
                    late,
                ]
                .into()
            }
            Direction::C2H => [
                Step::Take(ids),
                Step::Wait(machine.interconnect_ps + machine.read_ps),
                Step::Pass(memory, bytes),
                Step::Pass(axi, bytes),
                Step::Pass(up, machine.link.write(bytes)),
                Step::Release(ids),
            ]
            .into(),
        }
    }

    /// The driver's work on a call before its first ring.
    fn submit_ps(&self) -> u64 {
        let (small, huge) = self.pages();
        alveo::CALL.value
            + small * alveo::PIN.value
            + huge * alveo::PIN_HUGE.value
            + (small + huge) * alveo::DESCRIBE.value
    }

    /// The driver's work on a call after its last interrupt.
    fn finish_ps(&self) -> u64 {
        let (small, huge) = self.pages();
        small * alveo::UNPIN.value + huge * alveo::UNPIN_HUGE.value
    }

    /// The pages of the buffer: those of 4 KiB, and those within huge pages.
    fn pages(&self) -> (u64, u64) {
        let in_huge = self.load.bytes / alveo::HUGE_PAGE.value;
        let huge = in_huge.saturating_sub(1) * alveo::HUGE_PAGE.value / alveo::PAGE.value;
        (self.load.bytes.div_ceil(alveo::PAGE.value) - huge, huge)
    }

    fn driver_ps(&self, ps: u64) -> u64 {
        if self.machine.driver { ps } else { 0 }
    }
}

impl Parts {
    fn new(circuit: &mut Circuit<Meaning>, machine: &Machine, load: Load) -> Parts {
        let in_turn = |rate| Terms { rate, order: Order::RoundRobin, ..Terms::default() };
        let link = in_turn(Some(machine.link.packets()));
        let latency_ps = machine.round_trip_ps;
        let (up, down) = (circuit.add(link), circuit.add(link));
        let host = circuit.add(Terms { latency_ps, ..in_turn(None) });
        let (window, shared) = match load.direction {
            Direction::H2C => (machine.tags, machine.tags_shared),
            Direction::C2H => (machine.write_ids, false),
        };
        let ids = Terms { window: Some(window), ..in_turn(None) };
        let ids = if shared {
            vec![circuit.add(ids); load.channels as usize]
        } else {
            (0..load.channels).map(|_| circuit.add(ids)).collect()
        };
        let axi = circuit.add(in_turn(Some(Rate::per_second(alveo::AXI.value))));
        let memory = circuit.add(in_turn(Some(Rate::per_second(machine.memory))));
        Parts { up, down, host, ids, axi, memory }
    }
}
