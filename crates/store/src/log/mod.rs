//! The log: every change, in order, on the disk.
//!
//! - [`position`]: where a record is; the version of what it wrote.
//! - [`record`], [`segment`]: records as bytes, and the files they are in.

mod position;
mod record;
mod segment;

pub use position::Position;
pub use record::{Fields, HEADER, MAX_KEY, MAX_RECORD, MAX_VALUE, NoRecord, Operation};
pub use segment::{NoSegment, SEGMENT_HEADER, SegmentHeader, VERSION, segment_first, segment_name};
