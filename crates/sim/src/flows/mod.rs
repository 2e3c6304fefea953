//! Worlds of flows: a network of any size whose hosts send each other messages, with one card a
//! host, the one that runs live.
//!
//! - [`flow`]: a message, when it begins, and what must happen before.
//! - [`sizes`]: distributions of flow sizes. [`workload`]: flows by load, incasts, permutations.
//!   [`collective`]: all-reduce, and calls that wait for answers.
//! - [`cluster`]: runs flows on a topology. `run`, `rounds`, `shared`, `barrier`: its threads, and
//!   `division`: their parts. `share`: one part. `carrier`: what carries flows; `cards` do, with
//!   `gets` by kernels and `stores`, or `published`: models of others' transports. [`report`]:
//!   completion times and slowdowns. [`classes`]: both by size.
//! - [`transport`]: the transports. [`tuning`]: their figures. [`record`], `captured`: what a run
//!   leaves. [`watch`]: how far a run has come.
//!
//! ```
//! use remora_sim::flows::{Cluster, Flow, Sizes, poisson};
//! use remora_sim::net::{LeafSpine, LineRate, time::US};
//!
//! // Eight hosts of 100 Gb/s under two leaves and two spines.
//! let shape = LeafSpine {
//!     leaves: 2,
//!     spines: 2,
//!     hosts_per_leaf: 4,
//!     host_rate: LineRate::gigabits(100),
//!     fabric_rate: LineRate::gigabits(200),
//!     delay: US,
//! };
//! let cluster = Cluster::new(shape.topology());
//! // 100 µs of Poisson arrivals at half of the hosts' rate, and one message of 1 MB.
//! let mut flows = poisson(8, cluster.host_bits(), 0.5, &Sizes::cache_follower(), 100 * US, 7)?;
//! flows.push(Flow::new(0, 7, 1_000_000, 20 * US));
//! let report = cluster.run(&flows)?;
//! assert_eq!(report.done(), flows.len());
//! println!("{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod captured;
mod cards;
mod carrier;
pub mod classes;
pub mod cluster;
pub mod collective;
mod division;
pub mod flow;
mod gets;
mod published;
pub mod record;
pub mod report;
mod rounds;
mod run;
mod share;
mod shared;
pub mod sizes;
mod stores;
#[cfg(test)]
mod tests;
pub mod transport;
pub mod tuning;
pub mod watch;
pub mod workload;

pub use classes::SizeClass;
pub use cluster::{Cluster, ClusterError, Content};
pub use collective::{calls, gets as get_calls, halving_doubling, ring_all_reduce};
pub use flow::{Flow, FlowError, Hears, Verb, Work};
pub use record::{MessageWaits, Record, RecordOptions};
pub use report::{Completion, Deadlock, Report, Steady};
pub use sizes::{Sizes, SizesError};
pub use stores::StoreLoad;
pub use transport::{How, Published, TRANSPORTS, Transport};
pub use tuning::{PARAMETERS, Parameter, Tuned, Unit};
pub use watch::Watch;
pub use workload::{LoadError, all_to_all, incast, permutation, poisson, poisson_at};
