//! The machine of "In-Network Memory Access" (Farooqi, Hemmatpour, Larsen): a host with an AMD
//! Alveo U250, whose XDMA engine reaches on-chip or off-chip memory over AXI.
//!
//! No value is chosen so that figures come out right. What the paper does not say is from
//! documents, from what others have measured, or assumed, and [`PARAMETERS`] says which.

use super::parameter::{Ground, Parameter, Unit};
use super::pcie::{Generation, Lanes, Link, MaxPayload};
use super::{NS, US};

macro_rules! parameters {
    ($($(#[$doc:meta])* $id:ident = $value:expr, $unit:ident, $ground:ident,
        $name:literal, $source:literal;)*) => {
        $($(#[$doc])* pub const $id: Parameter = Parameter {
            name: $name,
            value: $value,
            unit: Unit::$unit,
            ground: Ground::$ground,
            source: $source,
        };)*
        /// All values of the model.
        pub const PARAMETERS: &[Parameter] = &[$($id),*];
    };
}

parameters! {
    /// The maximum payload size.
    PAYLOAD = 512, Bytes, Hypothesis, "maximum payload size",
        "Fig. 10's 13–14 GB/s are more than the 12.99 that 256 B leave";
    /// The maximum read request size.
    READ_REQUEST = 512, Bytes, Document, "maximum read request size",
        "the system of AMD's answer record 68049; usual for servers";
    /// From a read request to its data.
    ROUND_TRIP = 1500 * NS, Time, Measured, "round trip of a read",
        "StRoM §6.2, footnote 7: the same engine on another host; pcie-bench's cards: 0.5–0.7 µs";
    /// From one end of the link to the other.
    POSTED = 500 * NS, Time, Assumed, "latency of a posted write", "a third of the round trip";
    /// Read requests in flight.
    TAGS = 32, Count, Document, "read requests in flight",
        "PG195 allows 2–64 a channel; PCIe: 5-bit tags, unless the host enables more";
    /// Whether all channels share the tags.
    TAGS_SHARED = 1, Count, Hypothesis, "one pool of tags for all channels",
        "several channels of Fig. 9 are no faster than one";
    /// Whether a read keeps its tag until the card's memory has answered.
    TAG_UNTIL_WRITTEN = 1, Count, Document, "a read keeps its tag until its data is written",
        "PG195 and PG347, \"H2C Channel\"";
    /// Requests to the card's memory in flight, for a C2H channel.
    WRITE_IDS = 16, Count, Assumed, "reads of the card's memory in flight, a channel",
        "PG195 allows 2–32";
    /// Bytes of a descriptor.
    DESCRIPTOR = 32, Bytes, Document, "descriptor", "PG195; libxdma.h";
    /// Descriptors that are fetched at once.
    ADJACENT = 64, Count, Document, "descriptors fetched at once",
        "libxdma.h, XDMA_MAX_ADJ_BLOCK_SIZE";
    /// Descriptors of a run.
    RUN = 2048, Count, Document, "descriptors of a run", "libxdma.h, XDMA_ENGINE_XFER_MAX_DESC";
    /// Bytes that a descriptor covers.
    PAGE = 4096, Bytes, Document, "bytes of a descriptor's page",
        "cdev_sgdma.c: an entry for each page";
    /// A huge page.
    HUGE_PAGE = 2 << 20, Bytes, Assumed, "huge page",
        "transparent ones are on; a buffer lies in them but for its first 2 MiB";
    /// The system call, without pages.
    CALL = US, Time, Assumed, "system call and request", "";
    /// Pinning a page.
    PIN = 62 * NS, Time, Measured, "pinning a page",
        "Linux commit a03db236aebf, gup_test -LT: 130 ms for 8 GiB";
    /// Giving it back.
    UNPIN = 15 * NS, Time, Measured, "giving a page back", "the same: 32 ms";
    /// Pinning a page of a huge page.
    PIN_HUGE = 7 * NS, Time, Measured, "pinning 4 KiB of a huge page",
        "the same, gup_test -HL: 14 ms";
    /// Giving it back.
    UNPIN_HUGE = 5 * NS, Time, Measured, "giving 4 KiB of a huge page back", "the same: 11 ms";
    /// Writing a descriptor.
    DESCRIBE = 10 * NS, Time, Assumed, "mapping a page and writing its descriptor", "no IOMMU";
    /// The interrupt's handler, without its reads of registers.
    INTERRUPT = US, Time, Assumed, "entry of an interrupt (MSI-X)", "";
    /// Reads of the card's registers for a completion.
    REGISTER_READS = 3, Count, Document, "reads of registers for a completion",
        "libxdma.c: xdma_channel_irq, engine_service_work";
    /// Such a read.
    REGISTER_READ = US, Time, Assumed, "a read of a register", "two posted latencies";
    /// A wake-up of a thread.
    WAKE = 3250 * NS, Time, Measured, "wake-up of a thread",
        "2.8–3.7 µs on one core, of another machine; the work queue's, then the caller's";
    /// The rate of AXI, each direction.
    AXI = 16_000_000_000, PerSecond, Paper, "AXI, each direction",
        "Fig. 7; 64 B at 250 MHz";
    /// From the engine to the memory's controller and back.
    INTERCONNECT = 40 * NS, Time, Assumed, "AXI interconnect, both ways",
        "10 cycles; PG059: a crossbar alone takes 4";
    /// The rate of BRAM.
    BRAM = 16_000_000_000, PerSecond, Document, "BRAM", "PG078: a beat a cycle, that is AXI's";
    /// The latency of BRAM.
    BRAM_LATENCY = 12 * NS, Time, Assumed, "access to BRAM", "3 cycles";
    /// The rate of the card's DRAM.
    DDR = 19_200_000_000, PerSecond, Paper, "card's DRAM", "Fig. 7; DDR4-2400, 8 B";
    /// The latency of reads from it.
    DDR_READ = 180 * NS, Time, Assumed, "read of the card's DRAM", "45 cycles";
    /// The latency of writes to it.
    DDR_WRITE = 60 * NS, Time, Assumed, "write to the card's DRAM, to its answer", "15 cycles";
    /// What MicroBlaze's interconnect adds.
    MICROBLAZE = 226 * NS, Time, Hypothesis, "MicroBlaze: added latency of the interconnect",
        "what takes 10.8 to 9.4 GB/s with 16 KiB in flight; under test";
    /// The time between two accesses of the system on the card.
    KERNEL_EVERY = 160 * NS, Time, Assumed, "PetaLinux: an access of its own each", "40 cycles";
    /// Bytes of such an access.
    KERNEL_BYTES = 64, Bytes, Assumed, "PetaLinux: bytes of such an access", "a beat";
}

/// What is on the card between the engine and its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// On-chip memory (§5.1.1).
    Bram,
    /// DRAM (§5.1.2).
    Ddr,
    /// DRAM, and a MicroBlaze that does nothing (§5.1.3).
    MicroBlaze,
    /// DRAM, and a MicroBlaze that runs PetaLinux (§5.1.4).
    PetaLinux,
}

/// The values that a run uses: those of the table, or others, to see what depends on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The link.
    pub link: Link,
    /// From a read request to its data, in picoseconds.
    pub round_trip_ps: u64,
    /// Read requests in flight.
    pub tags: u32,
    /// Whether all channels share them.
    pub tags_shared: bool,
    /// Whether a read keeps its tag until the card's memory has answered.
    pub tag_until_written: bool,
    /// Requests to the card's memory in flight, for a C2H channel.
    pub write_ids: u32,
    /// What passes AXI on its way, both ways together, in picoseconds.
    pub interconnect_ps: u64,
    /// The rate of the card's memory in bytes a second.
    pub memory: u64,
    /// The latency of reads from it in picoseconds.
    pub read_ps: u64,
    /// The latency of writes to it in picoseconds.
    pub write_ps: u64,
    /// Picoseconds between accesses of a system on the card; `None`: there is none.
    pub kernel_every_ps: Option<u64>,
    /// Whether the driver's own work takes time.
    pub driver: bool,
}

impl Machine {
    /// The paper's machine with this design on its card.
    pub const fn new(design: Design) -> Machine {
        let added = match design {
            Design::Bram | Design::Ddr => 0,
            Design::MicroBlaze | Design::PetaLinux => MICROBLAZE.value,
        };
        let (memory, read_ps, write_ps) = match design {
            Design::Bram => (BRAM.value, BRAM_LATENCY.value, BRAM_LATENCY.value),
            _ => (DDR.value, DDR_READ.value, DDR_WRITE.value),
        };
        Machine {
            link: Link {
                generation: Generation::Gen3,
                lanes: Lanes::X16,
                payload: MaxPayload::B512,
                read_request: READ_REQUEST.value,
            },
            round_trip_ps: ROUND_TRIP.value,
            tags: TAGS.value as u32,
            tags_shared: TAGS_SHARED.value == 1,
            tag_until_written: TAG_UNTIL_WRITTEN.value == 1,
            write_ids: WRITE_IDS.value as u32,
            interconnect_ps: INTERCONNECT.value + added,
            memory,
            read_ps,
            write_ps,
            kernel_every_ps: match design {
                Design::PetaLinux => Some(KERNEL_EVERY.value),
                _ => None,
            },
            driver: true,
        }
    }
}
