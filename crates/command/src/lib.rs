//! What the commands of Remora share: memory nodes, options and output, and other processes of the
//! same program. The command itself is the crate `cli`.
//!
//! - [`node`]: memory nodes. [`ways`]: the same work near remote memory, done in several ways.
//! - [`device`]: options of every command that opens a device. [`size`]: sizes with units.
//!   [`seconds`]: lengths of time.
//! - [`command_line`] reads it, and says what is wrong with it. [`failure`]: errors in words, and
//!   the exit statuses.
//! - [`output`]: tables and JSON. [`foreign`]: JSON that comes from elsewhere. [`log`]: what is
//!   logged, and where.
//! - [`child`]: starts other processes of this program. [`bound`]: other programs, which end with
//!   this process. [`thread`]: starts threads. [`stop`]: how a command that serves is ended.
//! - [`random`]: tokens and seeds. [`draws`]: random numbers of a seed. [`percentile`]: percentiles
//!   of measurements. [`folder`]: temporary files. [`flight`]: many puts under way at once.
#![warn(missing_debug_implementations)]

pub mod bound;
pub mod child;
pub mod command_line;
pub mod device;
pub mod draws;
pub mod failure;
pub mod flight;
pub mod folder;
pub mod foreign;
pub mod log;
pub mod node;
pub mod output;
// The simulator has the same rule, and the demo is built without the simulator.
#[path = "../../sim/src/percentile.rs"]
pub mod percentile;
pub mod random;
pub mod seconds;
pub mod size;
pub mod stop;
pub mod thread;
pub mod ways;
