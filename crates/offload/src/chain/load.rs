//! Loading: gives a program its queues and its memory, on a card of any kind.

use remora_nic::Queue;

use super::element::QueueId;
use super::program::{Kind, Layout, LinkError, Program, QueueAt, RegionAt};

/// A card that programs are loaded into: the few things that loading asks of it.
pub trait Target {
    /// Why the card refuses.
    type Error: From<LinkError>;

    /// Makes a completion queue that counts, for the program's next queue; returns its number.
    ///
    /// # Errors
    /// The card refuses.
    fn counting_cq(&mut self) -> Result<u32, Self::Error>;

    /// Registers memory for the program's data, of so many bytes, which may be none.
    ///
    /// # Errors
    /// The card refuses.
    fn data(&mut self, len: usize) -> Result<RegionAt, Self::Error>;

    /// Makes a reliable queue pair with these queues, one of them at least, whose rings are
    /// registered for all access.
    ///
    /// # Errors
    /// The card refuses.
    fn queue_pair(
        &mut self,
        send: Option<Wanted>,
        recv: Option<Wanted>,
    ) -> Result<Made, Self::Error>;

    /// Connects a queue pair to itself, for all access.
    ///
    /// # Errors
    /// The card refuses.
    fn loop_back(&mut self, qpn: u32) -> Result<(), Self::Error>;

    /// Writes to the beginning of a region that was made for this program.
    ///
    /// # Errors
    /// The bytes do not fit.
    fn write(&mut self, region: RegionAt, bytes: &[u8]) -> Result<(), Self::Error>;
}

/// A queue that a program needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Which of the program's.
    pub queue: QueueId,
    /// Slots.
    pub depth: u32,
    /// Bytes from slot to slot.
    pub stride: u32,
    /// Local pieces of an element, at most.
    pub sges: usize,
    /// It is managed.
    pub managed: bool,
    /// The completion queue that it reports to.
    pub cq: u32,
}

/// A queue pair that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// Its number.
    pub qpn: u32,
    /// The ring of its send queue, if that was wanted.
    pub send: Option<RegionAt>,
    /// The ring of its receive queue, if that was wanted.
    pub recv: Option<RegionAt>,
}

/// The queue pair of a program towards its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientAt {
    /// Its number.
    pub qpn: u32,
    /// The completion queue of its send queue.
    pub send_cq: u32,
    /// That of its receive queue.
    pub recv_cq: u32,
}

/// A program on a card, not started yet.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where everything lies.
    pub layout: Layout,
    /// What its client connects to, if it has one.
    pub client: Option<ClientAt>,
    /// How far each queue may run at first.
    starts: Vec<(QueueId, Queue, u32)>,
}

impl Loaded {
    /// Lets it run; its client, if it has one, is connected. `doorbell` lets a queue of a queue
    /// pair run up to an index.
    ///
    /// # Errors
    /// Those of `doorbell`.
    pub fn start<E>(
        &self,
        mut doorbell: impl FnMut(u32, Queue, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let enabled = self.starts.iter().filter(|(.., enabled)| *enabled > 0);
        enabled.copied().try_for_each(|(id, queue, enabled)| {
            doorbell(self.layout.queues[id.index()].qpn, queue, enabled)
        })
    }
}

/// Makes what a program needs, and links it there. `imports` is the memory that it takes from
/// outside.
///
/// # Errors
/// The card refuses, or the program cannot be linked.
pub fn load<T: Target>(
    target: &mut T,
    program: &Program,
    imports: Vec<RegionAt>,
) -> Result<Loaded, T::Error> {
    let (reply, receive) = (only(program, Kind::Reply)?, only(program, Kind::Receive)?);
    let mut layout = Layout { data: target.data(program.data_len())?, imports, queues: vec![] };
    for _ in program.queues() {
        let cq = target.counting_cq()?;
        layout.queues.push(QueueAt { cq, ..QueueAt::default() });
    }
    for id in queues(program, Kind::Loop) {
        let made = target.queue_pair(Some(wanted(program, &layout, id)), None)?;
        target.loop_back(made.qpn)?;
        place(&mut layout, id, made.qpn, made.send);
    }
    let mut client = None;
    if let Some(some) = receive.or(reply) {
        let want = |id: QueueId| wanted(program, &layout, id);
        let made = target.queue_pair(reply.map(want), receive.map(want))?;
        let cq = |id: Option<QueueId>| layout.queues[id.unwrap_or(some).index()].cq;
        client = Some(ClientAt { qpn: made.qpn, send_cq: cq(reply), recv_cq: cq(receive) });
        for (id, ring) in [(reply, made.send), (receive, made.recv)] {
            id.into_iter().for_each(|id| place(&mut layout, id, made.qpn, ring));
        }
    }
    let image = program.link(&layout)?;
    for (at, bytes) in layout.queues.iter().zip(&image.queues) {
        target.write(at.ring, bytes)?;
    }
    target.write(layout.data, &image.data)?;
    let starts = program.queues().iter().zip(image.enabled).enumerate();
    let starts = starts.map(|(i, (queue, enabled))| (QueueId(i), half(queue.kind), enabled));
    Ok(Loaded { starts: starts.collect(), layout, client })
}

/// The queues of a kind.
fn queues(program: &Program, kind: Kind) -> impl Iterator<Item = QueueId> {
    let all = program.queues().iter().enumerate();
    all.filter(move |(_, queue)| queue.kind == kind).map(|(i, _)| QueueId(i))
}

/// The queue of a kind of which there is one at most.
fn only(program: &Program, kind: Kind) -> Result<Option<QueueId>, LinkError> {
    let mut ids = queues(program, kind);
    let first = ids.next();
    if ids.next().is_some() { Err(LinkError::Clients) } else { Ok(first) }
}

/// Which queue of its queue pair a queue is.
fn half(kind: Kind) -> Queue {
    match kind {
        Kind::Receive => Queue::Recv,
        Kind::Loop | Kind::Reply => Queue::Send,
    }
}

fn wanted(program: &Program, layout: &Layout, id: QueueId) -> Wanted {
    let queue = &program.queues()[id.index()];
    Wanted {
        queue: id,
        depth: queue.depth(),
        stride: program.stride(id),
        sges: program.sges(id),
        managed: queue.managed,
        cq: layout.queues[id.index()].cq,
    }
}

fn place(layout: &mut Layout, id: QueueId, qpn: u32, ring: Option<RegionAt>) {
    let at = &mut layout.queues[id.index()];
    (at.qpn, at.ring) = (qpn, ring.unwrap_or_default());
}
