//! A node: its threads, from start to end.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use remora::threads::without_signals;
use remora_store::log::Position;
use remora_store::memory::Memory;
use remora_store::store::Store;
use remora_store::tablespace::TablespaceOptions;

use crate::coordinator::{self, Coordinator};
use crate::door::Door;
use crate::drive::Drive;
use crate::group::{Group, GroupLog, LINKS_MAX, StartError};
use crate::link;

/// A node of a group, with its store. Dropping it gives its lease up, and ends its threads and its
/// links.
pub struct Node<M: Memory> {
    group: Arc<Group>,
    store: Arc<Store<M, GroupLog>>,
    threads: Vec<JoinHandle<()>>,
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
        let group = store.journal().0.clone();
        let (device, port) = (&group.device, group.options.port);
        let channel = device.create_channel()?;
        let queue = device.create_cq_on(&channel, link::entries(LINKS_MAX))?;
        let listener = device.listen(port).map_err(|source| StartError::Listen { port, source })?;
        let mut node = Node { group: group.clone(), store: store.clone(), threads: Vec::new() };
        let door = Door { group: group.clone(), listener, queue: queue.clone() };
        node.spawn("cluster door", move || door.run())?;
        let drive = Drive { group: group.clone(), store, queue, channel, spaces };
        node.spawn("cluster drive", move || drive.run())?;
        let requests = group.take_requests();
        node.spawn("cluster service", move || {
            if let Some(requests) = requests {
                coordinator::run(&group, coordinator, &requests);
            }
        })?;
        Ok(node)
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
        let copiers = std::mem::take(&mut self.group.lock().copiers);
        for thread in self.threads.drain(..).chain(copiers) {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}
