//! A node: its threads, from start to end.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use remora::threads::without_signals;
use remora_store::log::{CommitThread, Position, Recovery};
use remora_store::memory::Memory;
use remora_store::store::Store;
use remora_store::tablespace::TablespaceOptions;

use crate::coordinator::{self, Coordinator};
use crate::door::Door;
use crate::drive::Drive;
use crate::group::{Group, StartError};
use crate::journal::GroupLog;
use crate::keep::Keeping;

/// How often the length of the log is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long a node that ends waits for a disk that keeps nothing meanwhile, and for threads that
/// wait for such a disk.
const ENDING: Duration = Duration::from_secs(10);
/// The pause between two looks whether threads have ended.
const SHORT: Duration = Duration::from_millis(1);

/// A node of a group, with its store. Dropping it gives its lease up, and ends its threads and its
/// links.
pub struct Node<M: Memory> {
    group: Arc<Group>,
    store: Arc<Store<M, GroupLog>>,
    threads: Vec<JoinHandle<()>>,
    recovery: Option<Recovery>,
    /// Writes the log.
    writer: Option<CommitThread>,
}

impl<M: Memory> fmt::Debug for Node<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("group", &self.group.options).finish_non_exhaustive()
    }
}

impl<M: Memory + 'static> Node<M> {
    /// Begins to take part in a group. `store` is empty, and logs to the same group; the first
    /// primary makes `spaces` in it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        store: Arc<Store<M, GroupLog>>,
        spaces: Vec<TablespaceOptions>,
        coordinator: Box<dyn Coordinator>,
    ) -> Result<Node<M>, StartError> {
        Node::start_with(store, None, spaces, coordinator)
    }

    /// Goes on as the node that a directory is of, which was read back into the store, or begins as
    /// a new one that keeps everything in it: otherwise as [`Node::start`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn resume(
        store: Arc<Store<M, GroupLog>>,
        keeping: Keeping,
        spaces: Vec<TablespaceOptions>,
        coordinator: Box<dyn Coordinator>,
    ) -> Result<Node<M>, StartError> {
        Node::start_with(store, Some(keeping), spaces, coordinator)
    }

    fn start_with(
        store: Arc<Store<M, GroupLog>>,
        keeping: Option<Keeping>,
        spaces: Vec<TablespaceOptions>,
        coordinator: Box<dyn Coordinator>,
    ) -> Result<Node<M>, StartError> {
        let group = store.journal().0.clone();
        let (device, port) = (&group.device, group.options.port);
        let listener = device.listen(port).map_err(|source| StartError::Listen { port, source })?;
        let mut node = Node {
            group: group.clone(),
            store: store.clone(),
            threads: Vec::new(),
            recovery: None,
            writer: None,
        };
        if let Some(keeping) = keeping {
            node.keep(keeping)?;
        }
        let door = Door { group: group.clone(), listener };
        node.spawn("cluster door", move || door.run())?;
        let drive = Drive { group: group.clone(), store, spaces };
        node.spawn("cluster drive", move || drive.run())?;
        let requests = group.take_requests();
        node.spawn("cluster service", move || {
            if let Some(requests) = requests {
                coordinator::run(&group, coordinator, &requests);
            }
        })?;
        Ok(node)
    }

    /// Keeps the log short while the node lives.
    fn keep(&mut self, keeping: Keeping) -> std::io::Result<()> {
        let Keeping { saver, writer, recovery, .. } = keeping;
        (self.recovery, self.writer) = (Some(recovery), Some(writer));
        let (group, saves) = (self.group.clone(), saver.clone());
        // (It is set once, as the node starts.)
        let _ = self.group.saver.set(saver);
        self.spawn("cluster snapshots", move || {
            while let Some(log) = group.log.get().filter(|_| !group.is_stopping()) {
                saves.keep_short(log);
                thread::sleep(LOOK);
            }
        })
    }

    /// What was read back from the node's directory, if it has one.
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let named = thread::Builder::new().name(name.to_owned());
        self.threads.push(without_signals(|| named.spawn(work))?);
        Ok(())
    }

    /// The node's part in its group.
    #[must_use]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The node's store. What it shows is answered for by [`Group::read`], and what is changed in
    /// it by [`Group::wait`].
    #[must_use]
    pub fn store(&self) -> &Arc<Store<M, GroupLog>> {
        &self.store
    }

    /// Sees to it that the group has `size` members, and that it takes no more than each of them
    /// has memory for. To be called again and again, on every node.
    pub fn tend(&self, size: usize) {
        self.group.tend(size, self.store.used_bytes());
        self.store.set_limit(self.group.least_memory().unwrap_or(u64::MAX));
    }

    /// Waits until a majority holds the change of this version.
    ///
    /// # Errors
    /// See [`Doubt`](crate::Doubt).
    pub fn wait(&self, version: u64) -> Result<(), crate::Doubt> {
        self.group.wait(Position::from_number(version))
    }
}

impl<M: Memory> Drop for Node<M> {
    fn drop(&mut self) {
        self.group.stop();
        // Nobody waits for the log any more; what it was given is written.
        let written = self.writer.take().map(|writer| writer.close_within(ENDING));
        if let Some(Err(error)) = written {
            tracing::error!("{error}");
        }
        let copiers = std::mem::take(&mut self.group.lock().copiers);
        end_within(ENDING, self.threads.drain(..).chain(copiers).collect());
    }
}

/// Waits until all threads have ended. Those that have not within the patience are left to
/// themselves: they wait for a disk.
fn end_within(patience: Duration, mut threads: Vec<JoinHandle<()>>) {
    let start = Instant::now();
    while !threads.is_empty() && start.elapsed() < patience {
        threads.retain(|thread| !thread.is_finished());
        thread::sleep(SHORT);
    }
}
