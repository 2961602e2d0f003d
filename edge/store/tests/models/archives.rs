//! Builds valid and invalid archives, byte by byte where an archive library would refuse.

use std::io::Write as _;

use flate2::{Compression, Crc, write::GzEncoder};

/// One entry of a tar.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: u8,
    pub link: &'static str,
    pub body: Vec<u8>,
    /// The size in the header, if it is wrong.
    pub size: Option<u64>,
}

pub fn file(name: &str, body: &[u8]) -> Entry {
    Entry { name: name.into(), kind: b'0', link: "", body: body.to_vec(), size: None }
}

pub fn special(name: &str, kind: u8, link: &'static str) -> Entry {
    Entry { kind, link, ..file(name, b"") }
}

/// A PAX record, which starts with its own length.
pub fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len() + 1;
    while length.to_string().len() + rest.len() != length {
        length += 1;
    }
    format!("{length}{rest}").into_bytes()
}

pub fn pax(kind: u8, records: &[(&str, &str)]) -> Entry {
    let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
    Entry { kind, ..file("pax", &body) }
}

pub fn block(entry: &Entry) -> Vec<u8> {
    let mut header = [0u8; 512];
    let name = &entry.name[..entry.name.len().min(100)];
    header[..name.len()].copy_from_slice(name);
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    let size = entry.size.unwrap_or(entry.body.len() as u64);
    header[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    header[136..147].copy_from_slice(b"00000000000");
    header[156] = entry.kind;
    header[157..157 + entry.link.len()].copy_from_slice(entry.link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = header.to_vec();
    bytes.extend_from_slice(&entry.body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(block).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

pub fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// One entry of a zip, stored or deflated.
#[derive(Debug, Clone)]
pub struct Member {
    pub name: Vec<u8>,
    pub body: Vec<u8>,
    pub mode: u32,
    /// The uncompressed length in the headers, if it is wrong.
    pub stated_size: Option<u32>,
    pub flags: u16,
    /// The name in the local header, if it is different.
    pub local_name: Option<Vec<u8>>,
    pub is_deflated: bool,
}

pub fn member(name: &str, body: &[u8]) -> Member {
    Member {
        name: name.into(),
        body: body.to_vec(),
        mode: 0o100_644,
        stated_size: None,
        flags: 0,
        local_name: None,
        is_deflated: false,
    }
}

pub fn zip(members: &[Member]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for member in members {
        let at = u32::try_from(bytes.len()).unwrap();
        let mut crc = Crc::new();
        crc.update(&member.body);
        let data = if member.is_deflated { deflate(&member.body) } else { member.body.clone() };
        let packed = u32::try_from(data.len()).unwrap();
        let size = member.stated_size.unwrap_or(u32::try_from(member.body.len()).unwrap());
        let method = if member.is_deflated { 8u16 } else { 0 };
        let mut common = Vec::new();
        common.extend(20u16.to_le_bytes());
        common.extend(member.flags.to_le_bytes());
        common.extend(method.to_le_bytes());
        common.extend([0, 0, 0x21, 0x50]);
        common.extend(crc.sum().to_le_bytes());
        common.extend(packed.to_le_bytes());
        common.extend(size.to_le_bytes());
        let local = member.local_name.as_ref().unwrap_or(&member.name);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(u16::try_from(local.len()).unwrap().to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(local);
        bytes.extend(&data);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend(u16::try_from(member.name.len()).unwrap().to_le_bytes());
        directory.extend([0; 8]);
        directory.extend((member.mode << 16).to_le_bytes());
        directory.extend(at.to_le_bytes());
        directory.extend(&member.name);
    }
    let count = u16::try_from(members.len()).unwrap().to_le_bytes();
    let at = u32::try_from(bytes.len()).unwrap();
    let length = u32::try_from(directory.len()).unwrap();
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(count);
    bytes.extend(count);
    bytes.extend(length.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
