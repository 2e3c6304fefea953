//! The thread that moves slots from this node's group to others, while it is the primary: it
//! carries a `migration` out.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use remora::threads::without_signals;
use remora_store::front::slots::{Part, Range, Runs, Shard, Ticket};
use remora_store::memory::Memory;
use remora_store::scan::Cursor;
use remora_store::way::clock::now_ms;

use crate::map::{Atlas, MapService, SlotMap};
use crate::migration::{Hands, Item, Migration};
use crate::session::Session;
use crate::slots::Slots;

/// How often the map is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often is looked whether to stop.
const TICK: Duration = Duration::from_millis(20);

/// The thread that moves a node's slots. Dropping it ends it.
pub struct Mover<M: Memory> {
    slots: Arc<Slots<M>>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Memory> std::fmt::Debug for Mover<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").field("group", &self.slots.name).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Mover<M> {
    /// Begins to look at the map, and to move what it says. `password` is that of the other groups'
    /// Redis fronts.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        slots: Arc<Slots<M>>,
        service: Box<dyn MapService>,
        password: Option<String>,
    ) -> std::io::Result<Mover<M>> {
        let node = Node { slots: slots.clone(), service: RefCell::new(service), password };
        let work = Migration::new(node);
        let named = thread::Builder::new().name("cluster slots".to_owned());
        let thread = Some(without_signals(|| named.spawn(move || run(work)))?);
        Ok(Mover { slots, thread })
    }
}

impl<M: Memory> Drop for Mover<M> {
    fn drop(&mut self) {
        self.slots.is_stopping.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}

fn run<M: Memory + 'static>(mut migration: Migration<Node<M>>) {
    while !migration.hands.is_over() {
        let outcome = at_once(migration.turn());
        let Node { slots, .. } = &migration.hands;
        let mut trouble = slots.trouble.lock().unwrap_or_else(|gone| gone.into_inner());
        if let Err(reason) = &outcome
            && trouble.as_ref() != Some(reason)
        {
            tracing::info!("slots of group {} wait: {reason}", slots.name);
        }
        *trouble = outcome.err();
        drop(trouble);
        let mut left = LOOK;
        while !left.is_zero() && !migration.hands.is_over() {
            thread::sleep(TICK);
            left = left.saturating_sub(TICK);
        }
    }
}

/// What a future comes to that waits within its calls, and not between them.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("each step is done when its call returns"),
    }
}

/// What carries a migration out in a node.
struct Node<M: Memory> {
    slots: Arc<Slots<M>>,
    service: RefCell<Box<dyn MapService>>,
    password: Option<String>,
}

impl<M: Memory> std::fmt::Debug for Node<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("group", &self.slots.name).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Hands for Node<M> {
    type Session = Session;

    fn name(&self) -> &str {
        &self.slots.name
    }

    fn founding(&self) -> u32 {
        self.slots.group.options.founding()
    }

    fn serves_in(&self) -> Option<u32> {
        self.slots.group.serves_in()
    }

    fn is_over(&self) -> bool {
        self.slots.is_stopping.load(Relaxed) || self.slots.group.is_stopping()
    }

    fn shard(&self) -> Shard {
        self.slots.shard()
    }

    fn keys(&self, ranges: &[Range], from: Cursor) -> (Vec<(Vec<u8>, usize)>, Cursor) {
        self.slots.keys(ranges, from, now_ms())
    }

    fn items(&self, keys: &[Vec<u8>]) -> Vec<Item> {
        let Some(space) = self.slots.database() else { return Vec::new() };
        keys.iter().filter_map(|key| self.slots.item(space, key)).collect()
    }

    fn set_foreign(&self, slots: Runs<()>) {
        self.slots.set_foreign(slots);
    }

    fn begin(&self, map: &SlotMap) -> Result<(), String> {
        self.slots.begin(map)
    }

    fn window(&self) -> usize {
        (self.slots.group.options.ring_bytes / 4) as usize
    }

    fn become_for(&self, epoch: u32, ranges: &[Range], part: Option<&Part>) -> Result<(), String> {
        self.slots.become_for(epoch, ranges, part)
    }

    fn freeze(&self, epoch: u32, keys: &[Vec<u8>]) -> Result<(), String> {
        self.slots.freeze(epoch, keys)
    }

    fn release(&self, epoch: u32, keys: &[Vec<u8>]) -> Result<(), String> {
        self.slots.database().map_or(Ok(()), |space| self.slots.release(epoch, space, keys))
    }

    async fn settle(&self) -> Result<(), String> {
        self.slots.settle()
    }

    async fn look(&self) -> Result<Arc<Atlas>, String> {
        let epoch = self.serves_in();
        let atlas = Arc::new(self.service.borrow_mut().look()?);
        self.slots.set_atlas(atlas.clone(), epoch);
        Ok(atlas)
    }

    async fn replace(&self, revision: i64, next: &SlotMap) -> Result<bool, String> {
        self.service.borrow_mut().replace(revision, next)
    }

    async fn open(&self, atlas: &Atlas, to: &str, ticket: Ticket) -> Result<Session, String> {
        let view = atlas.groups.get(to);
        let primary = view.and_then(|view| view.primary()?.1?.redis);
        let primary = primary.ok_or_else(|| format!("group {to} has no primary at the moment"))?;
        Session::open(primary, self.password.as_deref(), &self.slots.name, ticket)
    }

    async fn take(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        with.take(ranges)
    }

    async fn retake(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        with.retake(ranges)
    }

    async fn import(&self, with: &mut Session, items: &[Item]) -> Result<(), String> {
        with.import(items)
    }

    async fn own(&self, with: &mut Session, ranges: &[Range]) -> Result<(), String> {
        with.own(ranges)
    }
}
