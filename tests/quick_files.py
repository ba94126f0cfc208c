"""Local files without a process for each: Hadoop sets the permissions of every file that it creates with `chmod`, four
times (of the file and of its checksums, each twice), unless a library of its own is installed.

In the JVM of a test run Java sets them. All else of Hadoop's local file system is as it was, checksums too.
"""

from __future__ import annotations

from typing import Any

SOURCE = """
package strandline.tests;

import java.io.IOException;
import java.lang.reflect.Method;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class QuickFiles extends LocalFileSystem implements Runnable {
    public QuickFiles() {
        super(new Raw());
    }

    public void run() {
        try {
            URI all = URI.create("file:///");
            Configuration conf = new Configuration();
            initialize(all, conf);
            Class[] parameters = new Class[] { URI.class, Configuration.class, FileSystem.class };
            Method use = FileSystem.class.getDeclaredMethod("addFileSystemForTesting", parameters);
            use.setAccessible(true);
            use.invoke(null, new Object[] { all, conf, this });
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String letters = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
                + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(letters));
        }
    }
}
"""


def use_quick_files(jvm: Any) -> None:
    """From now on, in this JVM."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE)
    compiler.getClassLoader().loadClass("strandline.tests.QuickFiles").newInstance().run()
