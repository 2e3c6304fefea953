//! Stores in a random world: clients read and change keys by kernels, READs and chains, the process
//! of the store crashes at any step and comes back with what its disk has, and the network has the
//! world's faults.
//!
//! What runs is the live code: table, log, snapshots and recovery over memory and a disk that are
//! arguments, the store's kernels on the host's card, and its client, whose requests the world
//! carries. [`crate::check::store`] judges what clients see, and what is there after a crash.
//!
//! - `options`: what a store is like. `server`: its process. `client`: a client;
//!   `connection`: what is between the two. `value`: keys and values as bytes. `order`: the numbers
//!   of events.

mod client;
mod connection;
pub(crate) mod options;
mod order;
mod server;
mod value;

use core::ops::AddAssign;

use client::{Client, Sight};
use server::Server;

pub use options::StoreOptions;

use crate::check::Violation;
use crate::check::store::Op;
use crate::dice::Dice;
use crate::world::World;

const CHECKER: &str = "store";

/// All stores of a world.
pub(crate) struct Stores {
    stores: Vec<(Server, Vec<Client>)>,
    dice: Dice,
    /// Numbers events and values.
    course: u64,
    value: u32,
}

/// What stores and their clients have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreTally {
    /// Operations whose ends their clients saw.
    pub ended: u64,
    /// Operations whose ends nobody saw.
    pub open: u64,
    /// Lives, the last of which only shows what the disk has.
    pub lives: u64,
    /// Snapshots.
    pub saved: u64,
    /// Keys that went by themselves.
    pub evicted: u64,
    /// Operations that there was no room for.
    pub refused: u64,
    /// Additions to counters that were begun.
    pub additions: u64,
    /// Flushes that were begun.
    pub flushes: u64,
    /// Operations that were begun and give a key an end.
    pub expiries: u64,
}

impl AddAssign for StoreTally {
    fn add_assign(&mut self, other: StoreTally) {
        let StoreTally { ended, open, lives, saved, evicted, .. } = other;
        let StoreTally { refused, additions, flushes, expiries, .. } = other;
        self.ended += ended;
        self.open += open;
        self.lives += lives;
        self.saved += saved;
        self.evicted += evicted;
        self.refused += refused;
        self.additions += additions;
        self.flushes += flushes;
        self.expiries += expiries;
    }
}

impl StoreTally {
    /// Counts an operation that begins.
    fn count(&mut self, op: Op) {
        match op {
            Op::Add(_) => self.additions += 1,
            Op::Flush => self.flushes += 1,
            Op::SetUntil(..) | Op::Touch(_) => self.expiries += 1,
            Op::Get | Op::Set(_) | Op::Delete | Op::Swap(..) => {}
        }
    }
}

impl Stores {
    /// Makes the stores and their clients. They begin when their hosts look after them.
    pub(crate) fn set_up(world: &mut World, options: &[StoreOptions], seed: u64) -> Stores {
        let mut dice = Dice::new(seed ^ 0x0073_746F_7265_7300);
        let mut store = |options: &StoreOptions| {
            server::make_runner(world, options.host);
            let clients = options.clients.iter();
            let clients = clients.map(|host| Client::new(*host, options, dice.fork())).collect();
            (Server::new(world, options, dice.fork()), clients)
        };
        let stores = options.iter().map(&mut store).collect();
        Stores { stores, dice, course: 0, value: 0 }
    }

    /// Lets stores crash, and go on being destroyed. Any number of steps of the world may come
    /// between two objects.
    pub(crate) fn step(&mut self, world: &mut World) -> Result<(), Violation> {
        for (server, clients) in &mut self.stores {
            if let Some(with_machine) = server.crashes_at(world.steps) {
                crash(world, server, clients, with_machine);
            }
            if !server.may_begin() && server.doors().is_none() && self.dice.coin() {
                server.destroy_next(world)?;
            }
        }
        Ok(())
    }

    /// Lets the stores and clients of a host look after their work.
    pub(crate) fn tick(&mut self, world: &mut World, host: usize) -> Result<(), Violation> {
        let Stores { stores, dice, course, value } = self;
        for (server, clients) in stores {
            if server.options.host == host {
                if server.may_begin() && dice.chance(0.1) {
                    clients.iter_mut().try_for_each(|client| client.disconnect(world))?;
                    server.begin(world)?;
                }
                if server.tick() {
                    crash(world, server, clients, true);
                }
            }
            for client in clients.iter_mut().filter(|client| client.host == host) {
                let doors = server.doors();
                let Server { options, history, .. } = server;
                let mut sight = Sight { options, doors, history, course, value };
                client.tick(world, &mut sight)?;
            }
        }
        Ok(())
    }

    /// The network is healed, and disks are, too.
    pub(crate) fn heal(&mut self) {
        self.stores.iter_mut().for_each(|(server, _)| server.heal());
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.stores.iter().flat_map(|(_, clients)| clients)
    }

    /// Have all clients done their work?
    pub(crate) fn is_done(&self) -> bool {
        self.clients().all(Client::is_done)
    }

    /// A number that changes whenever a store or a client has done something.
    pub(crate) fn activity(&self) -> u64 {
        self.course + self.tally().lives
    }

    /// Are there any? Then packets come for queue pairs that are gone.
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    pub(crate) fn tally(&self) -> StoreTally {
        let mut total = StoreTally::default();
        self.clients().for_each(|client| total += client.tally);
        for (server, _) in &self.stores {
            total.lives += server.life;
            total.saved += server.saved;
            total.evicted += server.evicted;
        }
        total
    }

    /// Describes the work that is not done.
    pub(crate) fn unfinished(&self) -> String {
        let all = self.clients().map(|client| format!("a client has {} to do\n", client.left));
        all.collect()
    }

    /// Writes all logs, so that no kernel waits for one.
    pub(crate) fn settle(&mut self) {
        self.stores.iter_mut().for_each(|(server, _)| server.settle());
    }

    /// Ends all stores by a crash, judges what their disks have, and destroys what is left.
    pub(crate) fn close(&mut self, world: &mut World) -> Result<(), Violation> {
        for (server, clients) in &mut self.stores {
            clients.iter_mut().try_for_each(|client| client.disconnect(world))?;
            server.close(world)?;
        }
        Ok(())
    }
}

fn crash(world: &mut World, server: &mut Server, clients: &mut [Client], with_machine: bool) {
    server.crash(world, with_machine);
    for connection in clients.iter_mut().filter_map(|client| client.connection.as_mut()) {
        server.inherit(core::mem::take(&mut connection.stores));
    }
}
