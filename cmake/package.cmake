# Install rules and the Debian package.
#
# bin/dsec is the one program that people call; it finds the others in
# ../libexec/dsec. The package is named by what it is and installs no service
# that runs: the administrator enables dsec.service.
include(GNUInstallDirs)
set(DSEC_LIBEXECDIR libexec/dsec)

foreach(program dsec)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
foreach(program dsec-keeper dsec-spawner dsec-stored)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${DSEC_LIBEXECDIR})
  endif()
endforeach()
if(TARGET dsec-agent)
  # 0111, owned by root: with the mount it stands on, this keeps its address
  # space out of reach of root inside a sandbox.
  install(TARGETS dsec-agent RUNTIME DESTINATION ${DSEC_LIBEXECDIR} PERMISSIONS OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(EXISTS ${CMAKE_SOURCE_DIR}/api)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/api/ DESTINATION ${CMAKE_INSTALL_DATADIR}/dsec/api)
endif()
if(EXISTS ${CMAKE_SOURCE_DIR}/sdk/python/libdsec)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/sdk/python/libdsec DESTINATION lib/python3/dist-packages
          PATTERN "__pycache__" EXCLUDE PATTERN "tests" EXCLUDE)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/deploy/dsec.service DESTINATION lib/systemd/system)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME dsec)
set(CPACK_PACKAGE_VENDOR "The dsec authors")
set(CPACK_PACKAGE_CONTACT "The dsec authors <dsec@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Sandboxes for LLM agents: isolated, stateful, made in a millisecond")
set(CPACK_PACKAGE_DESCRIPTION "One node of the dsec platform: an API server, an edge that runs container sandboxes from composable layers, and a command line client.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "ca-certificates, python3-aiohttp")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "mmdebstrap, uidmap, skopeo, btrfs-progs")
include(CPack)
