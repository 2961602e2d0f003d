//! Writes a file of weights with the layout of another one. The bytes depend only on that layout and
//! on the data: no clock, no library and no version of `NumPy` changes them.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
};

use super::{Format, Tensor, Weights, WeightsError, npy};

/// Writes the data of all tensors, in the order of the file that gave the layout.
#[derive(Debug)]
pub struct WeightsWriter {
    file: File,
    format: Format,
    /// Number of bytes written so far.
    at: u64,
    /// The parts of a `.npz` file that are complete.
    members: Vec<Member>,
    current: Option<(Member, crc32fast::Hasher)>,
}

#[derive(Debug)]
struct Member {
    name: String,
    offset: u32,
    size: u32,
    checksum: u32,
}

impl WeightsWriter {
    /// Begins to write into an empty file. A `.npz` file becomes one without compression.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(file: File, layout: &Weights) -> io::Result<Self> {
        file.write_all_at(&layout.header, 0)?;
        let at = layout.header.len() as u64;
        Ok(Self { file, format: layout.format, at, members: Vec::new(), current: None })
    }

    /// Begins the next tensor.
    ///
    /// # Errors
    /// The file cannot be written, or an `.npz` file would exceed 4 GiB.
    pub fn begin(&mut self, tensor: &Tensor) -> Result<(), WeightsError> {
        self.end_member()?;
        if self.format == Format::Safetensors {
            return Ok(());
        }
        let Some(name) = tensor.data_type.numpy() else {
            let problem = format!("NumPy has no type {}", tensor.data_type);
            return Err(WeightsError::Unsupported { tensor: tensor.name.clone(), problem });
        };
        let header = npy::header(name, tensor.fortran_order, &tensor.shape);
        let size = tensor.bytes().unwrap_or(u64::MAX).saturating_add(header.len() as u64);
        let too_large = |_| WeightsError::npz("the weights are larger than 4 GiB: use safetensors");
        let offset = u32::try_from(self.at).map_err(too_large)?;
        let size = u32::try_from(size).map_err(too_large)?;
        let member = Member { name: format!("{}.npy", tensor.name), offset, size, checksum: 0 };
        let mut local = b"PK\x03\x04".to_vec();
        member.description(&mut local);
        local.extend(member.name.as_bytes());
        self.write_at_end(&local)?;
        self.current = Some((member, crc32fast::Hasher::new()));
        Ok(self.write_all(&header)?)
    }

    /// Writes the end of the file, and waits until the disk has all of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<File, WeightsError> {
        self.end_member()?;
        if self.format == Format::Npz {
            let directory = self.directory()?;
            self.write_at_end(&directory)?;
        }
        self.file.sync_all()?;
        Ok(self.file)
    }

    fn directory(&self) -> Result<Vec<u8>, WeightsError> {
        let mut directory = Vec::new();
        for member in &self.members {
            directory.extend(b"PK\x01\x02\x14\x00");
            member.description(&mut directory);
            // No comment, disk 0, no attributes.
            directory.extend([0; 10]);
            directory.extend(member.offset.to_le_bytes());
            directory.extend(member.name.as_bytes());
        }
        let too_large = |_| WeightsError::npz("the weights are larger than 4 GiB: use safetensors");
        let offset = u32::try_from(self.at).map_err(too_large)?;
        let size = u32::try_from(directory.len()).map_err(too_large)?;
        let members = u16::try_from(self.members.len());
        let members = members.map_err(|_| WeightsError::npz("too many arrays for a .npz file"))?;
        directory.extend(b"PK\x05\x06\x00\x00\x00\x00");
        directory.extend([members.to_le_bytes(), members.to_le_bytes()].concat());
        directory.extend([size.to_le_bytes(), offset.to_le_bytes()].concat());
        directory.extend([0; 2]);
        Ok(directory)
    }

    fn end_member(&mut self) -> io::Result<()> {
        if let Some((mut member, checksum)) = self.current.take() {
            member.checksum = checksum.finalize();
            let at = u64::from(member.offset) + 14;
            self.file.write_all_at(&member.checksum.to_le_bytes(), at)?;
            self.members.push(member);
        }
        Ok(())
    }

    fn write_at_end(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl Write for WeightsWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_at_end(bytes)?;
        if let Some((_, checksum)) = &mut self.current {
            checksum.update(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Member {
    /// What the local header and the directory both contain: needs version 2.0, a name in UTF-8,
    /// stored, 1980-01-01, checksum, sizes, no extra field.
    fn description(&self, to: &mut Vec<u8>) {
        to.extend([0x14, 0, 0, 0x08, 0, 0, 0, 0, 0x21, 0]);
        to.extend(self.checksum.to_le_bytes());
        to.extend(self.size.to_le_bytes());
        to.extend(self.size.to_le_bytes());
        let length = u16::try_from(self.name.len()).unwrap_or(u16::MAX);
        to.extend(length.to_le_bytes());
        to.extend([0; 2]);
    }
}
