//! What a world is like: drawn from its seed.

use core::fmt;
use core::time::Duration;

use remora_store::replica::Options;

use crate::dice::Dice;

const MS: u64 = 1_000_000;

/// The bytes of a ring: little, so that it is full often.
pub(crate) const RING: u64 = 2048;

/// What a world is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From which all that is drawn is drawn.
    pub seed: u64,
    /// The machines, with a node each.
    pub nodes: u64,
    /// Those who read and write, and are judged.
    pub clients: usize,
    /// How many operations each client makes while there are faults.
    pub operations: u64,
    /// The keys that they read and write.
    pub keys: u64,
    /// How many changes come at once from somebody who waits for no answer: fewer than this.
    pub burst: u64,
    /// How long a lease is.
    pub lease_ns: u64,
    /// How long a node waits for others before it does something.
    pub patience_ns: u64,
    /// How much clocks gain or lose at most, in millionths.
    pub drift_ppm: u32,
    /// Nodes keep what is on their disks, and come back under their numbers.
    pub on_disk: bool,
    /// How long a disk takes at most.
    pub disk_ns: u64,
    /// Disks hang now and then, for up to some leases.
    pub disks_hang: bool,
    /// WRITEs take the sender's bytes when they leave, not when they are posted.
    pub reads_late: bool,
    /// Packets of WRITEs overtake others, as where cards speak the lossy dialect.
    pub overtakes: bool,
    /// A node that is stopped is still written to, as by a card of its own.
    pub card_lives: bool,
    /// In how many pieces more than one a copy of a store comes, each some 3 µs behind the one
    /// before: many take a good part of a lease, so that copies break off, and primaries change
    /// meanwhile.
    pub pieces: u64,
    /// Somebody who waits for no answer makes transactions, which go on for up to a lease.
    pub transacts: bool,
    /// When the last fault comes, and all are mended.
    pub calm_at_ns: u64,
    /// How long a connection goes on without an acknowledgement.
    pub retry_ns: u64,
    /// Off only to see that the checkers notice: reads are answered without a lease.
    pub honours_lease: bool,
}

impl Plan {
    /// The plan of `seed`.
    pub fn draw(seed: u64) -> Plan {
        Plan::draw_from(seed).0
    }

    /// The plan, and the dice for what happens in it.
    pub(super) fn draw_from(seed: u64) -> (Plan, Dice) {
        let mut dice = Dice::new(seed);
        let lease_ns = dice.between(4..=20) * MS;
        let plan = Plan {
            seed,
            nodes: dice.pick(&[3, 3, 3, 5]),
            clients: dice.between(2..=4) as usize,
            operations: dice.between(8..=24),
            keys: dice.between(2..=3),
            burst: dice.pick(&[1, 3, 12]),
            lease_ns,
            patience_ns: dice.between(2..=8) * MS,
            drift_ppm: dice.pick(&[0, 1000, 100_000]),
            on_disk: dice.one_in(2),
            disk_ns: dice.pick(&[MS / 50, MS / 2, 5 * MS]),
            reads_late: dice.one_in(2),
            card_lives: dice.one_in(2),
            calm_at_ns: dice.between(40..=250) * MS,
            retry_ns: dice.between(1..=4) * MS,
            // (Of other dice, so that worlds without them are what they were.)
            pieces: Dice::new(!seed).pick(&[0, 100, 1000, 5000]),
            transacts: Dice::new(seed ^ 1 << 40).one_in(2),
            disks_hang: Dice::new(seed ^ 1 << 41).one_in(2),
            overtakes: Dice::new(seed ^ 1 << 42).one_in(2),
            honours_lease: true,
        };
        (plan, dice)
    }

    pub(super) fn replica(&self) -> Options {
        Options {
            ring_bytes: RING,
            salt: 5,
            patience_ns: self.patience_ns,
            lease_ns: self.lease_ns,
            drift_ppm: self.drift_ppm,
            waits_for_disk: self.on_disk,
            disk_patience_ns: 2 * self.lease_ns,
        }
    }

    /// How often a node is told that time has passed.
    pub(super) fn tick_ns(&self) -> u64 {
        (self.patience_ns / 5).min(self.lease_ns / 10)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, nodes, clients, operations, keys, burst, .. } = self;
        let time = Duration::from_nanos;
        let kept = if self.on_disk { "on disks" } else { "in memory" };
        writeln!(f, "seed {seed}: a group of {nodes} nodes, {kept}")?;
        let (lease, patience) = (time(self.lease_ns), time(self.patience_ns));
        let drift = f64::from(self.drift_ppm) / 1e4;
        writeln!(f, "  lease   {lease:?}, patience {patience:?}, clocks off by up to {drift} %")?;
        if self.on_disk {
            let hang = if self.disks_hang { ", and some hang" } else { "" };
            writeln!(f, "  disks   up to {:?} a write{hang}", time(self.disk_ns))?;
        }
        let sent = if self.reads_late { "leave" } else { "are posted" };
        let stopped = if self.card_lives { "take part" } else { "are stopped, too" };
        writeln!(
            f,
            "  links   end after {:?}, WRITEs read when they {sent}{}, \
             cards of stopped nodes {stopped}",
            time(self.retry_ns),
            if self.overtakes { ", and overtaking" } else { "" }
        )?;
        writeln!(
            f,
            "  clients {clients}, {operations} operations each on {keys} keys, \
             bursts below {burst} changes{}",
            if self.transacts { ", and transactions" } else { "" }
        )?;
        writeln!(f, "  copies  in {} pieces", self.pieces + 1)?;
        writeln!(f, "  faults  until {:?}", time(self.calm_at_ns))
    }
}
