//! What a world is like: drawn from its seed.

use remora_store::replica::Options;

use super::dice::Dice;
use super::node::RING;

const MS: u64 = 1_000_000;

/// What a world is like.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u64,
    pub(crate) clients: usize,
    /// How many operations each client makes while there are faults.
    pub(crate) operations: u64,
    pub(crate) keys: u64,
    /// How many changes come at once from somebody who waits for no answer: fewer than this.
    pub(crate) burst: u64,
    pub(crate) lease_ns: u64,
    pub(crate) patience_ns: u64,
    /// How much clocks gain or lose at most, in millionths.
    pub(crate) drift_ppm: u32,
    /// Nodes keep what is on their disks, and come back under their numbers.
    pub(crate) on_disk: bool,
    /// How long a disk takes at most.
    pub(crate) disk_ns: u64,
    /// WRITEs take the sender's bytes when they leave, not when they are posted.
    pub(crate) reads_late: bool,
    /// A node that is stopped is still written to, as by a card of its own.
    pub(crate) card_lives: bool,
    /// When the last fault comes, and all are mended.
    pub(crate) calm_at_ns: u64,
    /// How long a connection goes on without an acknowledgement.
    pub(crate) retry_ns: u64,
    /// Off only to see that the checkers notice: reads are answered without a lease.
    pub(crate) honours_lease: bool,
}

impl Plan {
    pub(crate) fn of(dice: &mut Dice) -> Plan {
        let lease_ns = dice.between(4, 20) * MS;
        Plan {
            nodes: [3, 3, 3, 5][dice.below(4) as usize],
            clients: dice.between(2, 4) as usize,
            operations: dice.between(8, 24),
            keys: dice.between(2, 3),
            burst: [1, 3, 12][dice.below(3) as usize],
            lease_ns,
            patience_ns: dice.between(2, 8) * MS,
            drift_ppm: [0, 1000, 100_000][dice.below(3) as usize],
            on_disk: dice.one_in(2),
            disk_ns: [MS / 50, MS / 2, 5 * MS][dice.below(3) as usize],
            reads_late: dice.one_in(2),
            card_lives: dice.one_in(2),
            calm_at_ns: dice.between(40, 250) * MS,
            retry_ns: dice.between(1, 4) * MS,
            honours_lease: true,
        }
    }

    pub(crate) fn replica(&self) -> Options {
        Options {
            ring_bytes: RING,
            salt: 5,
            patience_ns: self.patience_ns,
            lease_ns: self.lease_ns,
            drift_ppm: self.drift_ppm,
            waits_for_disk: self.on_disk,
        }
    }

    /// How often a node is told that time has passed.
    pub(crate) fn tick_ns(&self) -> u64 {
        (self.patience_ns / 5).min(self.lease_ns / 10)
    }
}
