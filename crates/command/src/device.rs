//! Options of every command that opens a device.

use clap::Args;
use remora::{Device, DeviceOptions, OpenError};

use crate::output;

/// Options of every command that opens a device.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// IP address or interface to bind to [default: a free address of 127.0.0.0/8]
    #[arg(long, value_name = "IP|INTERFACE")]
    pub bind: Option<String>,
    /// Write what the card sends and receives to a pcapng file
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<std::path::PathBuf>,
    /// Run the card's own thread at real-time priority, before all other threads (needs
    /// CAP_SYS_NICE, or a limit set by `ulimit -r`)
    #[arg(long)]
    pub real_time: bool,
    /// Print the card's counters at the end
    #[arg(long)]
    pub stats: bool,
}

impl DeviceArgs {
    /// Opens the device.
    pub fn open(&self) -> Result<Device, OpenError> {
        self.options().open()
    }

    /// The device that is asked for.
    pub fn options(&self) -> DeviceOptions {
        let mut options = DeviceOptions::new();
        if let Some(bind) = &self.bind {
            options = options.bind(bind);
        }
        if let Some(path) = &self.pcap {
            options = options.capture(path);
        }
        if self.real_time {
            options = options.real_time();
        }
        options
    }

    /// Prints the counters, if `--stats` was given.
    pub fn finish(&self, device: &Device) {
        if self.stats {
            output::counters(device);
        }
    }
}
