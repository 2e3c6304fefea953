//! Options of every command that opens a device.

use anyhow::Result;
use clap::Args;
use remora::connection::token::Token;
use remora::{Device, DeviceOptions, OpenError};

use crate::{output, random};

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

/// The token that clients of a node on this device must show: the one that was given, and beyond
/// loopback, where anybody on the network could connect, a new one if none was.
///
/// # Errors
/// The operating system has no random bytes.
pub fn token_of_node(device: &Device, given: Option<Token>) -> Result<Option<Token>> {
    match given {
        None if !device.info().address.is_loopback() => random::token().map(Some),
        given => Ok(given),
    }
}
